"""Settings of data: splits and subsets that a benchmark does not have, and settings that belong to another one."""

from __future__ import annotations

import pytest

from tests.cli.composing import config, faults, read_conf_once
from unlearn.cli.checks import no_effect

__all__ = ["read_conf_once"]

HUB = ["model=llama-2-7b", "data=muse"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["data.split=raw"], "data.split: needs one of forget01, forget05, forget10; found 'raw'"),
        (["data=muse", "data.split=forget10"], "data.split: needs one of raw, scal_1, scal_2, scal_3, scal_4, sust; "
         "found 'forget10'"),
        (["data.subset=news"], "data.subset: needs null with data=tofu; found 'news'"),
        (["data=muse", "data.subset=null"], "data.subset: needs one of news, books with data=muse; found null"),
        (["data=muse", "data.subset=wiki"], "data.subset: needs one of news, books or null; found 'wiki'"),
        (["data=muse", "data.subset=books"], "data.subset: the embedded texts are news; needs news, or books with "
         "data.source=hub or a folder; found 'books'"),
        (["data=muse", "data.corpus=privleak", "data.split=sust"], "data.split: needs raw with data.corpus=privleak, "
         "which has one forget set; found sust"),
        ([*HUB, "data.subset=books", "data.split=scal_2"], "data.split: needs raw with data.subset=books, as "
         "published; found scal_2"),
        (["data=muse", "data.split=sust", "data.requests=2"], "data.requests: needs 1 with data.split=sust, which "
         "brings its own requests; found 2"),
        (["data=muse", "data.retain_rows=general"], "data.retain_rows: needs retain, or a file with texts, with "
         "data=muse, which has no texts about the world; found general"),
    ],
)  # fmt: skip
def test_what_no_file_could_satisfy_is_refused_in_one_line(words: list[str], line: str) -> None:
    assert faults(*words) == [line]


@pytest.mark.parametrize(
    ("words", "key", "why"),
    [
        (["data.corpus=privleak"], "data.corpus", "data=tofu has none"),
        (["data.limit.questions=5"], "data.limit.questions", "data=tofu has none"),
        (["data=muse", "data.limit.real_authors=5"], "data.limit.real_authors", "data=muse has none"),
        (["data=muse", "data.limit.world_facts=5"], "data.limit.world_facts", "data=muse has none"),
        (["data=muse", "data.limit.questions=5", "suite=none"], "data.limit.questions", "suite=none does not score the "
         "benchmark"),
    ],
)  # fmt: skip
def test_settings_of_another_benchmark_have_no_effect(words: list[str], key: str, why: str) -> None:
    assert f"{key}: has no effect, because {why}" in no_effect(config(*words), {key})


@pytest.mark.parametrize("words", [["data=muse"], HUB, [*HUB, "data.subset=books"], ["data=muse", "data.split=scal_3"]])
def test_what_is_right_passes_without_a_word(words: list[str]) -> None:
    keys = {"data.subset", "data.split", "data.corpus", "data.limit.questions", "data.limit.forget"}
    assert not [line for line in no_effect(config(*words), keys) if line.startswith("data.")]


@pytest.mark.parametrize("subset", ["news", "books"])
def test_presets_name_what_is_published(subset: str) -> None:
    cfg = config(f"experiment=muse-{subset}")
    assert cfg.data.key == f"muse-{subset}"
    published = cfg.model.published[cfg.data.key]
    assert published.target == f"muse-bench/MUSE-{subset.title()}_target"
    assert published.reference == f"muse-bench/MUSE-{subset.title()}_retrain"
    assert (cfg.model.max_length, cfg.optimizer.lr, cfg.trainer.epochs, cfg.trainer.stop) == (2048, 1e-5, 10, "none")
    assert cfg.scheduler.name == "constant"
