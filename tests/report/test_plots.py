from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.report.fake_run import step_lines
from unlearn.report import plots

SVG = "{http://www.w3.org/2000/svg}"


def test_half_a_line_and_repeated_steps_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "lr": 0.1 * step}) for step in (1, 2, 3)]
    resumed = json.dumps({"step": 2, "lr": 9.0})
    path.write_text("\n".join([*lines, resumed]) + '\n{"step": 4, "lr"')
    assert [(entry["step"], entry["lr"]) for entry in plots.read_steps(path)] == [(1, 0.1), (2, 9.0), (3, 0.1 * 3)]
    assert plots.read_steps(tmp_path / "absent") == []


@pytest.fixture(scope="module")
def drawn() -> list[tuple[plots.Plot, str]]:
    return plots.curves(step_lines())


def test_every_plot_is_a_small_self_contained_titled_svg(drawn: list[tuple[plots.Plot, str]]) -> None:
    assert [plot.name for plot, _ in drawn] == ["losses", "norms", "cosine", "weights", "lr"]
    ids: list[str] = []
    for plot, drawing in drawn:
        root = ET.fromstring(drawing)
        assert root.find(f"{SVG}title").text == plot.title  # type: ignore[union-attr]
        assert root.find(f"{SVG}desc").text == plot.text  # type: ignore[union-attr]
        assert len(drawing) < 15_000
        assert "width" not in root.attrib
        assert "font-family" not in drawing
        assert "<style" not in drawing
        assert not any(stand_in in drawing for stand_in in plots.PAPER_COLOURS)
        ids += [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))


def test_labels_keep_their_digits(drawn: list[tuple[plots.Plot, str]]) -> None:
    (drawing,) = [drawing for plot, drawing in drawn if plot.name == "lr"]
    labels = [element.text for element in ET.fromstring(drawing).iter(f"{SVG}text")]
    assert "0.0002" in labels
    assert "0.0008" in labels


def test_a_constant_is_drawn_on_an_axis_from_zero() -> None:
    lines = [{"step": step, "lr": 1e-4} for step in (1, 2, 3)]
    ((_, drawing),) = plots.curves(lines)
    labels = [element.text for element in ET.fromstring(drawing).iter(f"{SVG}text")]
    assert "0" in labels
    assert "0.0001" in labels


@pytest.mark.parametrize("count", [0, 1, 2])
def test_short_runs_draw_what_there_is(count: int) -> None:
    drawn = plots.curves(step_lines(count))
    assert len(drawn) == (5 if count else 0)


def test_nulls_leave_gaps_and_an_absent_curve_leaves_no_plot() -> None:
    lines = [
        line | {"cosine": None, "nll_retain": None, "norm": None if line["step"] > 3 else 1.0} for line in step_lines(5)
    ]
    names = [plot.name for plot, _ in plots.curves(lines)]
    assert "cosine" not in names
    assert "losses" in names
    assert "norms" in names


@pytest.mark.parametrize(
    ("values", "wide"),
    [([1.0, 9.99], False), ([1.0, 10.0], True), ([0.0, 100.0], False), ([], False), ([-1.0, 5.0], False)],
)
def test_log_axis_from_one_decade_on(values: list[float], wide: bool) -> None:
    assert plots.spans_a_decade(values) is wide


def test_the_same_run_gives_the_same_bytes(drawn: list[tuple[plots.Plot, str]]) -> None:
    assert plots.curves(step_lines()) == drawn
