"""Checks of the settings of data: splits and subsets that a benchmark does not have, and settings of another one."""

from __future__ import annotations

from unlearn.cli.keys import show
from unlearn.cli.method_warnings import Idle
from unlearn.config import RunConfig
from unlearn.data.benchmarks import SPLITS
from unlearn.data.muse_files import SUBSETS


def data_faults(cfg: RunConfig) -> list[str]:
    """Settings of data that no file could satisfy, one line each."""
    data, faults = cfg.data, []
    splits = SPLITS.get(data.name)
    if splits is None:
        return [f"data.name: needs one of {', '.join(SPLITS)}; found {show(data.name)}"]
    if data.split not in splits:
        faults.append(f"data.split: needs one of {', '.join(splits)}; found {show(data.split)}")
    if data.name != "muse":
        if data.subset is not None:
            faults.append(f"data.subset: needs null with data={data.name}; found {show(data.subset)}")
        return faults
    if data.subset is None:
        faults.append(f"data.subset: needs one of {', '.join(SUBSETS)} with data=muse; found null")
    if data.subset == "books" and data.source == "embedded":
        faults.append(
            "data.subset: the embedded texts are news; needs news, or books with data.source=hub or a folder; "
            "found 'books'"
        )
    if data.split in splits and data.split != "raw":
        if data.corpus == "privleak":
            faults.append(
                f"data.split: needs raw with data.corpus=privleak, which has one forget set; found {data.split}"
            )
        elif data.subset == "books" and data.source == "hub":
            faults.append(f"data.split: needs raw with data.subset=books, as published; found {data.split}")
    if data.split == "sust" and data.requests != 1:
        faults.append(
            f"data.requests: needs 1 with data.split=sust, which brings its own requests; found {data.requests}"
        )
    if data.retain_rows == "general":
        faults.append(
            "data.retain_rows: needs retain, or a file with texts, with data=muse, which has no texts about the world; "
            "found general"
        )
    return faults


def data_idle(cfg: RunConfig) -> list[Idle]:
    """Settings of data that belong to another benchmark."""
    name = cfg.data.name
    why = f"data={name} has none"
    of_tofu, of_muse = ("data.limit.real_authors", "data.limit.world_facts"), ("data.corpus", "data.limit.questions")
    return [
        *(Idle(key, name != "tofu", why) for key in of_tofu),
        *(Idle(key, name != "muse", why) for key in of_muse),
        Idle("data.limit.questions", not cfg.suite.benchmark, f"suite={cfg.suite.name} does not score the benchmark"),
    ]
