from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report import fake_run
from unlearn.evaluation import records
from unlearn.report import html
from unlearn.report.rows import STAGES, format_value, table_rows

ATTACK = '<script>alert("x")</script><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """Tags with their attributes, and the text of the table's cells by (metric, stage)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: dict[tuple[str, str], str] = {}
        self.text = ""
        self._cell: tuple[str, str] | None = None
        self._skip = False
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "td":
            metric, stage = attributes.get("data-metric"), attributes.get("data-stage")
            self._cell = (metric, stage) if metric and stage else None
        self._skip = tag in ("sup", "style")

    def handle_endtag(self, tag: str) -> None:
        self._cell = None if tag == "td" else self._cell
        self._skip = False if tag in ("sup", "style") else self._skip

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell and not self._skip and data.strip():
            self.cells.setdefault(self._cell, data.strip())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return fake_run.make_run(tmp_path / "run")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    run_dir = fake_run.make_run(tmp_path_factory.mktemp("run"))
    path = html.write_report(run_dir)
    assert path == run_dir / "report.html"
    return Page(path)


def test_every_number_of_results_json_is_in_the_table(page: Page) -> None:
    results = fake_run.results()
    expected = {
        (name, stage): format_value(score["value"]) for stage in STAGES for name, score in results[stage].items()
    }
    assert page.cells == expected
    assert page.cells["privleak", "after"] == "–"
    exact = {
        (a["data-metric"], a["data-stage"]): a.get("title")
        for tag, a in page.tags
        if tag == "td" and "data-metric" in a
    }
    assert exact["forget.prob", "after"] == "0.04321"
    assert exact["privleak", "after"] is None


def test_the_page_holds_all_parts(page: Page) -> None:
    text = " ".join(page.text.split())
    for part in (
        "ngdiff_auto on tofu forget10, model tiny",
        "Embedded, not comparable with published numbers",
        "fell from 0.981 to 0.043",
        "Stopped at step 32",
        "no holdout rows",
        "unlearn-run method=ngdiff_auto data=tofu",
        "target 41.2 s, reference 38.7 s (cached), unlearn 6.1 s",
        "torch 2.13.0",
        "0.68 GiB",  # 734003200 / 2^30 = 0.6836
        "81,234",
        "Ilse Varga was born in in in the city of of",
        "Mateo Quiroga was born in Cusco, Peru.",
        "harmonic mean",
    ):
        assert part in text
    assert sum(tag == "figure" for tag, _ in page.tags) == 5
    assert len(re.findall(r"p = 0\.040", text)) == 4  # four forget samples, exp(mean log-probability) after
    assert "Riga" not in text  # the fifth


@pytest.mark.parametrize("kind", ["page", "full", "muse"])
def test_the_page_needs_no_network_and_no_script(kind: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(kind)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", page.source)


def test_generated_text_cannot_become_markup(run_dir: Path) -> None:
    path = run_dir / "records" / "after" / "forget.parquet"
    rows = records.read(path)
    hostile = [records.Record(**{**vars(row), "generated": ATTACK, "prompt": ATTACK, "answer": ATTACK}) for row in rows]
    records.write(hostile, path)
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "config.yaml").write_text(fake_run.CONFIG + f"output_dir: '{ATTACK}'\n")
    (run_dir / "run.json").write_text(json.dumps(fake_run.RUN | {"status": 'done"><script>'}))
    page = Page(html.write_report(run_dir))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert ATTACK in page.text


def test_a_diverged_run_without_after(run_dir: Path) -> None:
    results = fake_run.results()
    del results["after"]
    (run_dir / "results.json").write_text(json.dumps(results | {"reference": None, "stop": None, "weights": None}))
    (run_dir / "run.json").write_text(json.dumps({"status": "diverged"}))
    (run_dir / "metrics.jsonl").write_text(json.dumps(fake_run.step_lines(1)[0]) + '\n{"step": 2, "lo')
    page = Page(html.write_report(run_dir))
    text = " ".join(page.text.split())
    assert "diverged after 32 optimizer steps" in text
    assert "nothing here says what it forgot" in text
    assert {stage for _, stage in page.cells} == {"before"}


def test_an_empty_folder_still_gives_a_page(tmp_path: Path) -> None:
    text = " ".join(Page(html.write_report(tmp_path)).text.split())
    assert "unknown" in text
    assert "not evaluated" in text


def test_samples_are_the_first_answers_with_all_stages(run_dir: Path) -> None:
    samples = html.read_samples(run_dir, "forget", 2)
    assert [sample.id for sample in samples] == ["forget/0", "forget/1"]
    assert [answer.stage for answer in samples[0].answers] == ["before", "after", "reference"]
    assert [round(answer.prob or 0, 6) for answer in samples[0].answers] == [0.98, 0.04, 0.12]
    assert html.read_samples(run_dir, "holdout", 2) == []


def test_a_value_outside_its_range_is_drawn_at_the_edge_and_an_open_range_not_at_all() -> None:
    after = {"privleak": {"value": 5.0, "n": 1}, "forget.prob": {"value": 1.2, "n": 1}}
    privleak, prob = table_rows({"after": after})
    assert html._spread(prob) == {"after": 100.0}
    assert html._spread(privleak) == {}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(html.write_report(fake_run.make_run(tmp_path_factory.mktemp("full"), fake_run.full_results())))


@pytest.fixture(scope="module")
def muse(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(html.write_report(fake_run.make_run(tmp_path_factory.mktemp("muse"), fake_run.muse_results())))


def test_a_page_of_schema_1_has_none_of_the_new_parts(page: Page) -> None:
    for part in ("Who bears the brunt", "Epoch by epoch", "Request by request", "95 % interval", "greedy decoding"):
        assert part not in page.text
    assert not any(a.get("class") == "interval" for _, a in page.tags)


def test_the_page_of_a_full_run_holds_the_new_parts(full: Page) -> None:
    text = " ".join(full.text.split())
    for part in (
        "[0.915, 0.972]",
        "epoch 2, kept",
        "request 2 (40 rows)",
        "Retain set: what lost most",
        "13 more of the worst decile",  # ceil(160 / 10) - 3
        "The answer 0 of retain, as it should be.",
        "2 of 4 answers differ from plain greedy decoding",
    ):
        assert part in text
    assert "World facts: what lost most" not in text  # at most 0.004 each
    assert sum(tag == "figure" for tag, _ in full.tags) == 5 + 3
    ids = [a["id"] for _, a in full.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    assert full.cells["forget.prob", "after"] == "0.043"


def test_the_page_of_muse_leads_with_its_four_numbers(muse: Page) -> None:
    values = re.findall(r'class="value">.*→ </span>(.*)</div>', muse.source)
    assert values == ["0.340", "0.180", "-21.5", "0.470"]
    text = " ".join(muse.text.split())
    assert "… Question: What was closed? Answer:" in text  # of a few-shot prompt the last question alone
    assert "Ada Kern" not in text
    assert max(map(len, re.findall(r"<p class=\"truth\">(.*)</p>", muse.source))) < 600  # articles of 8,000 characters


def test_texts_of_the_worst_examples_cannot_become_markup(run_dir: Path) -> None:
    results = fake_run.full_results()
    results["damage"]["retain"]["worst"][0] |= dict.fromkeys(
        ("id", "prompt", "answer", "generated_before", "generated_after"), ATTACK
    )
    (run_dir / "results.json").write_text(json.dumps(results))
    page = Page(html.write_report(run_dir))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert ATTACK in page.text


def test_long_samples_are_shortened(run_dir: Path) -> None:
    path = run_dir / "records" / "after" / "forget.parquet"
    long = "again and " * 1000
    rows = [records.Record(**{**vars(row), "generated": long, "answer": long}) for row in records.read(path)]
    records.write(rows, path)
    (sample,) = html.read_samples(run_dir, "forget", 1)
    (after,) = [answer for answer in sample.answers if answer.stage == "after"]
    assert after.generated is not None
    assert after.generated.endswith(" and…")
    assert len(after.generated) <= html.LONGEST_TEXT


def test_the_interval_of_the_value_after_is_drawn_in_the_range() -> None:
    after = {"forget.prob": {"value": 0.5, "n": 1, "interval": [0.4, 0.7]}}
    (row,) = table_rows({"after": after})
    assert html._spread(row) == {"after": 50.0, "low": 40.0, "high": 70.0}
