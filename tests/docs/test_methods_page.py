"""docs/methods.md is what the code makes of itself, and names everything that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unlearn.cli.methods_page import page
from unlearn.config import conf_dir
from unlearn.gradients.combine import COMBINE
from unlearn.objectives.forget import FORGET
from unlearn.objectives.retain import RETAIN
from unlearn.training.optimizer import OPTIMIZERS

ROOT = Path(__file__).parents[2]
PAGE = page()
PARTS = {"Forget objectives": FORGET, "Retain objectives": RETAIN, "Combination rules": COMBINE}


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.partition(f"## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_committed_page_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == PAGE, "run `make docs`"


@pytest.mark.parametrize("title", PARTS)
def test_every_part_has_formula_source_need_and_cost(title: str) -> None:
    entries = re.split(r"^### ", section(title), flags=re.MULTILINE)[1:]
    names = [entry.partition("\n")[0].strip("`") for entry in entries]
    assert names == [name for name in PARTS[title] if name != "none"]
    for name, entry in zip(names, entries, strict=True):
        formula = re.search(r"```text\n(.+)\n```", entry, re.DOTALL)
        assert formula is not None, name
        assert re.search(r"^- Source: .*\w", entry, re.MULTILINE), name
        assert re.search(r"^- Costs ", entry, re.MULTILINE), name
        assert title == "Combination rules" or re.search(r"^- Needs ", entry, re.MULTILINE), name


def test_every_preset_and_optimizer_is_listed() -> None:
    for file in (conf_dir() / "method").glob("*.yaml"):
        assert f"\n| `{file.stem}` | " in section("Presets")
        assert f"\n- `{file.stem}`: " in section("Presets")
    assert all(f"- `{name}`: " in section("Optimizers") for name in OPTIMIZERS)


@pytest.mark.parametrize(
    ("title", "name", "lines"),
    [
        ("Forget objectives", "npo", ["Needs the start model's log-probability of each row.",
                                      "Costs one forward pass over all rows before the first step."]),
        ("Forget objectives", "rmu", ["Needs hidden states of one layer."]),
        ("Forget objectives", "ascent", ["Value: falls without end, so `trainer.stop=auto` watches the holdout."]),
        ("Forget objectives", "llmu", ["Sum of two means, over all answer tokens of the step and all tokens of the "
                                       "alternates."]),
        ("Retain objectives", "kl", ["Value: zero at the start model, and so is its gradient."]),
        ("Combination rules", "linear", ["Costs nothing: its weights are known ahead, and both losses go into one "
                                         "gradient."]),
        ("Combination rules", "pcgrad", [
            "With the defaults the update has no negative inner product with either gradient: a plain gradient step "
            "raises neither loss, to first order; an adaptive optimizer's step may (see `ngdiff_adam`)."]),
        ("Combination rules", "ngdiff_adam", ["With the defaults the step that the optimizer takes raises neither "
                                              "loss, to first order.",
                                              "Costs one more gradient in memory.", "Needs `optimizer=adamw_pair`."]),
    ],
)  # fmt: skip
def test_words_follow_from_what_a_part_declares(title: str, name: str, lines: list[str]) -> None:
    entry = section(title).partition(f"### `{name}`\n")[2].partition("\n### ")[0]
    assert all(f"\n- {line}\n" in entry for line in lines), entry


def test_links_and_tables_are_well_formed() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1, table
    assert re.findall(r"arXiv arXiv|ArXiv|\[\[|\.\.$", PAGE) == []
    assert re.findall(r"arxiv\.org/abs/(?!\d{4}\.\d{5}\))", PAGE) == []
