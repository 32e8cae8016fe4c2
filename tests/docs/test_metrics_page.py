"""docs/metrics.md is what the code makes of itself, and defines every metric that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unlearn.cli.metrics_page import BENCHMARKS, HEAD, page
from unlearn.evaluation.metrics import METRICS
from unlearn.evaluation.values import Value

ROOT = Path(__file__).parents[2]
PAGE = page()
ENTRIES = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
UNWRAPPED = " ".join(PAGE.split())


def test_the_committed_page_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == PAGE, "run `make docs`"


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_its_formula_in_one_entry(name: str) -> None:
    short = name if f"### `{name}`\n" in PAGE else name.partition(".")[2]
    (entry,) = [entry for entry in ENTRIES if entry.startswith(f"`{short}`\n")]
    assert short == name or entry.count(f"`{name}` ") == 1
    assert " ".join(METRICS[name].formula.split()) in " ".join(entry.split())


def test_every_entry_has_all_parts() -> None:
    assert len({entry.partition("\n")[0] for entry in ENTRIES}) == len(ENTRIES) < len(METRICS)
    for entry in ENTRIES:
        parts = entry.count("```text\n")
        assert parts >= 1
        assert len(re.findall(r"^- Range \S+ to \S+; on (?:TOFU|MUSE|WMDP)", entry, re.MULTILINE)) == parts
        assert len(re.findall(r"^- Source: .*\w", entry, re.MULTILINE)) == parts


def test_metrics_of_several_sets_are_one_entry_with_an_arrow_each() -> None:
    entry = next(entry for entry in ENTRIES if entry.startswith("`truth_ratio`\n"))
    forget, utility = entry.split("Truth ratio: ")[1:]
    assert forget.startswith("`forget.truth_ratio` ↑\n")
    assert utility.startswith("`retain.truth_ratio` ↑, `real_authors.truth_ratio` ↑, `world_facts.truth_ratio` ↑\n")
    assert "min(R, 1/R)" in forget
    assert "max(0, 1 - R)" in utility
    assert "\nModel utility ↑\n" in PAGE
    assert "`forget.prob` ↓, `retain.prob` ↑" in PAGE


@pytest.mark.parametrize(
    ("name", "benchmarks"),
    [
        ("model_utility", "TOFU"),
        ("forget_quality", "TOFU"),
        ("verbmem_f", "MUSE"),
        ("privleak", "TOFU, MUSE"),
        ("forget.min_k_auc", "TOFU, MUSE"),
        ("accuracy", "WMDP"),
    ],
)
def test_benchmarks_follow_from_the_sets(name: str, benchmarks: str) -> None:
    """MUSE's forget texts ask nothing, so that TOFU's truth ratios have no meaning there."""
    entry = next(entry for entry in ENTRIES if entry.startswith(f"`{name}`\n"))
    assert f"; on {benchmarks}.\n" in entry


def test_sets_and_keys_of_a_value_are_explained() -> None:
    for name in {name for metric in METRICS.values() for name in metric.sets}:
        assert any(name in sets for sets in BENCHMARKS.values())
        assert f"`{name}`" in HEAD
    assert all(f"| `{key}` | " in HEAD for key in Value.__annotations__)


def test_links_and_tables_are_well_formed() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    headings = {
        re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) == headings
    assert re.findall(r"(?<!\[)\b[A-Z]\w+ et al\. \d{4}", UNWRAPPED) == []
    assert re.findall(r"arxiv\.org/abs/(?!\d{4}\.\d{5}\))|\.\.$", PAGE, re.MULTILINE) == []
