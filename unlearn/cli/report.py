"""The command `unlearn-report`: what can be done with finished runs. No model is loaded, torch is not imported."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn import __version__
from unlearn.errors import INTERRUPTED, OK, UNEXPECTED, UserError

if TYPE_CHECKING:
    from unlearn.evaluation.scores import Scores

SCHEMA = 2
STAGES = ("before", "after")
NO_REFERENCE = "no reference scores"
"""The reason of a metric that needs a reference where there is none."""

Values = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        score(arguments.runs)
    except UserError as error:
        for line in error.messages:
            print(f"error: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if arguments.traceback:
            traceback.print_exc()
        said = " ".join(str(error).split())
        hint = "" if arguments.traceback else " (--traceback shows where)"
        print(f"error: unexpected {type(error).__name__}: {said}{hint}", file=sys.stderr)
        return UNEXPECTED
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unlearn-report", description="What can be done with finished runs.")
    parser.add_argument("--version", action="version", version=f"unlearn-report {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    rescoring = commands.add_parser(
        "score",
        help="compute all metrics of a run again from its records",
        description="Compute all metrics of each RUN again from its records, as this version defines them, and write "
        "results.json and report.html anew. Prints what changed. No model is loaded.",
    )
    rescoring.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, as in outputs/...")
    rescoring.add_argument("--traceback", action="store_true", help="show the Python traceback of an error")
    return parser


def score(runs: list[Path]) -> None:
    """Compute the metrics of each run again and print what changed.

    Raises UserError before the first one is changed where a folder is no run.
    """
    faults = [fault for run in runs if (fault := _no_run(run))]
    if faults:
        raise UserError(faults)
    for folder in runs:
        try:
            run = read(folder)
        except (ValueError, OSError) as error:
            raise UserError(" ".join(str(error).split())) from error
        changes = run.rescore()
        if changes:
            print("\n".join([str(folder), *(f"  {line}" for line in changes)]))


def _no_run(folder: Path) -> str | None:
    missing = [name for name in ("run.json", "results.json") if not (folder / name).is_file()]
    if not missing:
        return None
    found = f"no {' and no '.join(missing)}" if folder.is_dir() else "no folder"
    return f"{folder}: needs the folder of a run, found {found}"


@dataclass(frozen=True)
class Run:
    """What a run folder holds, as far as its metrics depend on it.

    text       results.json as it is
    columns    scores of every column that has records ("before", "epoch-2")
    tasks      what other harnesses measured, by column
    reference  None where the scores of the reference are not there
    """

    folder: Path
    text: str
    results: dict[str, Any]
    columns: dict[str, Scores]
    tasks: dict[str, Values]
    reference: Scores | None

    def rescore(self) -> list[str]:
        """Compute all metrics again, and write results.json and report.html. Returns what changed, a line each."""
        from unlearn.evaluation.damage import damage
        from unlearn.evaluation.records import columns as column_entries
        from unlearn.report.html import write_report

        old, columns = self.results, self.columns
        new = old | {"schema": SCHEMA}
        if self.reference is not None:
            new["reference"] = self.values("reference", self.reference, old.get("reference") or {})
        new |= {stage: self.values(stage, columns[stage], old.get(stage) or {}) for stage in STAGES if stage in columns}
        new |= {key: deepcopy(old.get(key) or []) for key in ("epochs", "requests")}
        for column, entry in column_entries(new):
            if column in columns:
                entry["values"] = self.values(column, columns[column], entry.get("values") or {})
        if all(stage in columns for stage in STAGES):
            new["damage"] = damage(*(columns[stage] for stage in STAGES))
        self._replace(json.dumps(new, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        write_report(self.folder)
        return [line for name, was, now in _pairs(old, new) for line in _changes(name, was, now)]

    def values(self, column: str, scores: Scores, old: Values) -> Values:
        """A column's metrics. What its records do not tell is taken from `old`."""
        from unlearn.evaluation.metrics import METRICS, evaluate

        new: Values = {**evaluate(scores, self.reference, NO_REFERENCE), **self.tasks.get(column, {})}
        kept = {name for name, value in new.items() if NO_REFERENCE in value.get("reason", "")}
        kept |= {name for name in old if name not in METRICS and name not in new}
        return new | {name: old[name] for name in old if name in kept}

    def _replace(self, text: str) -> None:
        """Replace results.json in one move, where its content is another."""
        if text != self.text:
            partial = self.folder / ".results.json.part"
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.folder / "results.json")


def read(folder: Path) -> Run:
    """Read a run folder. Raises ValueError or OSError, one line, where something cannot be read."""
    from unlearn.evaluation.references import read_column

    path = folder / "results.json"
    text = path.read_text(encoding="utf-8")
    results = _object(text, path)
    places = [place for place in sorted(folder.glob("records/*")) if any(place.glob("*.parquet"))]
    columns = {place.name: read_column(place) for place in places}
    tasks = {place.name: _tasks(place) for place in places}
    reference = columns.pop("reference", None) or _named_reference(folder, bool(results.get("reference")))
    return Run(folder, text, results, columns, tasks, reference)


def _named_reference(folder: Path, expected: bool) -> Scores | None:
    """The scores of the log or of the other run that the settings name. Raises ValueError."""
    from unlearn.evaluation import references

    named = references.read_config(folder).get("model", {}).get("reference")
    if isinstance(named, str) and references.is_evaluation(named):
        return references.read_reference(Path(named))
    if expected:
        print(
            f"warning: {folder}: the scores of its reference ({named}) are not there; its metrics, and those that "
            "compare with it, stay as they were",
            file=sys.stderr,
        )
    return None


def _tasks(column: Path) -> Values:
    """What other harnesses measured."""
    path = column / "measured.json"
    return dict(_object(path.read_text(encoding="utf-8"), path).get("tasks") or {}) if path.is_file() else {}


def _object(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: needs an object, found a {type(found).__name__}")
    return found


def _pairs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Values, Values]]:
    """Every set of metrics with its name, as it was and as it is."""
    for stage in (*STAGES, "reference"):
        yield stage, old.get(stage) or {}, new.get(stage) or {}
    for key, name in (("epochs", "epoch"), ("requests", "request")):
        for was, now in zip(old.get(key) or [], new[key], strict=True):
            yield f"{name} {now[name]:g}", was.get("values") or {}, now.get("values") or {}


def _changes(column: str, old: Values, new: Values) -> Iterator[str]:
    """What became of the metrics of one column: a line for each value that changed, and one for all of each other kind.

    Those are metrics that are new, that are no more, and whose value stayed while what stands beside it did not.
    """
    rest: dict[str, list[str]] = {}
    changed = []
    for name in dict.fromkeys([*new, *old]):
        if name not in old:
            rest.setdefault("new", []).append(name)
        elif name not in new:
            rest.setdefault("no more", []).append(name)
        elif old[name].get("value") != new[name].get("value"):
            changed.append(f"{column}: {name} {_change(old[name]['value'], new[name]['value'])}")
        elif old[name] != new[name]:
            keys = ", ".join(key for key in {**old[name], **new[name]} if old[name].get(key) != new[name].get(key))
            rest.setdefault(f"with the same value and another {keys}", []).append(name)
    yield from (f"{column}: {len(names)} {what}: {', '.join(names)}" for what, names in rest.items())
    yield from changed


def _change(old: float | None, new: float | None) -> str:
    by = f" ({new - old:+.3g})" if old is not None and new is not None else ""
    return f"{_shown(old)} -> {_shown(new)}{by}"


def _shown(value: float | None) -> str:
    return "null" if value is None else f"{value:.6g}"


if __name__ == "__main__":
    sys.exit(main())
