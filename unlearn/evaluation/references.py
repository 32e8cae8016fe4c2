"""What stands in for a reference model: scores that were made before, by published code or by another run.

A run folder gives what it kept under records/reference, else under records/after: the model that it ended with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearn.evaluation import logs, records
from unlearn.evaluation.scores import Row, Scores, from_records

if TYPE_CHECKING:
    from unlearn.config import ModelConfig
    from unlearn.data import encode

COLUMNS = ("reference", "after")
"""The folders of a run's records that are a reference, the better one first."""

NEEDED = f"an evaluation log ({', '.join(logs.FILE_NAMES)}), the folder of another run, or a folder of its records"

SHAPE = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers")
"""What models of one family and size share, by the names of config.json."""


@dataclass(frozen=True)
class Reference(Scores):
    """Scores, and where they come from.

    place   the file or folder that was read, for messages
    is_log  rows are numbered, and their prompts are written in the log's own format
    run     the run folder that the records belong to, where they do
    config  that run's settings; empty where they are not known
    """

    place: str = ""
    is_log: bool = False
    run: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Such as "outputs/retrained (tofu forget05)"."""
        data = self.config.get("data", {})
        words = " ".join(str(data[key]) for key in ("name", "subset", "split") if data.get(key))
        return f"'{self.place}'" + (f" ({words})" if words else "")


def is_evaluation(path: str) -> bool:
    """Whether a path has scores in it, and no model: a file, a folder with a log, a run or a folder of records."""
    place = Path(path).expanduser()
    if not place.is_dir():
        return place.is_file()
    return not (place / "config.json").is_file() and (_is_run(place) or bool(_sets(place) or [*place.glob("*.json")]))


def read_reference(path: Path) -> Reference:
    """Scores of a log, of a run folder, or of a folder of records.

    ValueError, one line, where the path is nothing of the kind or cannot be read.
    """
    place = Path(path).expanduser()
    if place.is_dir() and not logs.logs_in(place):
        folder = _records_of(place)
        run = next((parent for parent in folder.resolve().parents[:2] if _is_run(parent)), None)
        return Reference(read_column(folder).sets, str(folder), run=run, config=read_config(run) if run else {})
    return Reference(logs.read_log(place).sets, str(place), is_log=True)


def read_column(folder: Path) -> Scores:
    """Scores of one folder of records. ValueError, one line, where a file cannot be read."""
    found = {}
    for path in _sets(folder):
        try:
            found[path.stem] = records.read(path)
        except (OSError, ValueError, TypeError, KeyError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"{path}: needs the records of a run, found {type(error).__name__} ({said})") from None
    return from_records(found)


def fits(reference: Scores, rows: Mapping[str, Sequence[encode.Row]]) -> str | None:
    """Why a reference is of other data than the rows that are scored, one line; None where it is of the same.

    What is compared row by row counts: the forget sets and the holdout. A log may have fewer rows, as those of TOFU's
    authors have (the first 300), where its texts show that they are the first ones.
    """
    title = reference.title if isinstance(reference, Reference) else "the reference"
    if "forget" in rows and _is_muse(reference.sets) != _is_muse(rows):
        return (
            f"needs an evaluation on the sets {', '.join(rows)}; {title} is one on another benchmark, of the sets "
            f"{', '.join(reference.sets)}"
        )
    for name in rows:
        if name != "holdout" and not name.startswith("forget"):
            continue
        if name not in reference.sets:
            if name == "forget":
                return f"needs scores of the forget set; {title} has none"
            continue
        expected = [row for row in rows[name] if row.kind == "answer"]
        if fault := _unlike(reference, list(reference.sets[name].values()), expected):
            return f"needs the same {len(expected)} {name} rows as this run; {title} {fault}"
    return None


def other_model(reference: Reference, model: ModelConfig) -> str | None:
    """Why a reference is of another model, one line; None where it is of the same, or where nobody knows."""
    theirs, ours = _model(reference), _own(model)
    if _same(theirs, ours) is not False:
        return None
    return (
        f"needs a reference of the same model, '{ours['name']}', since how well an attack tells seen from unseen rows "
        f"depends on the model; {reference.title} is of '{theirs['name']}'"
    )


def unknown_model(reference: Reference, model: ModelConfig) -> str | None:
    """A warning where nothing tells whether a reference is of the same model; None where something does."""
    if _same(_model(reference), _own(model)) is not None:
        return None
    return f"nothing in {reference.title} tells whether it is of '{model.name}'; of another model it is no reference"


def _is_muse(sets: Iterable[str]) -> bool:
    return any(name.endswith(("knowmem", "verbmem")) for name in sets)


def _unlike(reference: Scores, found: Sequence[Row], expected: Sequence[encode.Row]) -> str | None:
    """How the reference's rows of a set differ from those that are scored."""
    if isinstance(reference, Reference) and reference.is_log:
        return _unlike_log(found, expected)
    if len(found) != len(expected):
        return f"has {len(found)}"
    by_id = {row.id: row for row in found}
    for row in expected:
        if row.id not in by_id:
            return f"has other ones, without {row.id}"
        if (by_id[row.id].prompt, by_id[row.id].answer) != (row.prompt, row.answer):
            return f"has other texts, first in {row.id}"
    return None


def _unlike_log(found: Sequence[Row], expected: Sequence[encode.Row]) -> str | None:
    """Logs have no ids: the answers must be the same at the same numbers, but for what decoding does to some."""
    texts = {_number(row, place): _squeezed(row.answer) for place, row in enumerate(found) if row.answer is not None}
    same = sum(k < len(expected) and text == _squeezed(expected[k].answer) for k, text in texts.items())
    if len(found) > len(expected) or (not texts and len(found) < len(expected)):
        return f"has {len(found)}"
    return f"has other texts: {same} of its {len(texts)} answers are the same" if 2 * same < len(texts) else None


def _number(row: Row, place: int) -> int:
    number = row.id.rpartition("/")[2]
    return int(number) if number.isdecimal() else place


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file() and (folder / "results.json").is_file()


def _sets(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _records_of(place: Path) -> Path:
    """The folder of records that a path means."""
    if _sets(place):
        return place
    columns = place / "records" if _is_run(place) else place
    folder = next((columns / name for name in COLUMNS if _sets(columns / name)), None)
    if folder is None:
        found = "no records of a reference or of the model after" if _is_run(place) else "none of these"
        raise ValueError(f"{place}: needs {NEEDED}, found {found}")
    return folder


def read_config(run: Path) -> dict[str, Any]:
    """A run's settings. ValueError where the file cannot be read."""
    from omegaconf import OmegaConf

    path = run / "config.yaml"
    try:
        found = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    except Exception as error:  # what a broken YAML raises is not one class
        raise ValueError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _model(reference: Reference) -> dict[str, Any]:
    """Name, first weights and shape of the model that a run folder is about."""
    model = reference.config.get("model", {})
    own = [reference.run / "model"] if reference.run else []
    return _facts(model, [*own, *_folders(model.get("path"), model.get("target"))])


def _own(model: ModelConfig) -> dict[str, Any]:
    known = {"name": model.name, "path": model.path, "tiny": vars(model.tiny)}
    return _facts(known, _folders(model.path, model.target))


def _facts(model: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    shape = next((found for folder in folders if (found := _shape(folder))), {})
    if not shape and model.get("name") == "tiny":
        shape = {"hidden_size": model["tiny"]["hidden_size"], "num_hidden_layers": model["tiny"]["layers"]}
    return {"name": model.get("name"), "path": model.get("path"), "shape": shape}


def _folders(*paths: str | None) -> list[Path]:
    return [Path(path).expanduser() for path in paths if path]


def _shape(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: config[key] for key in SHAPE if key in config} if isinstance(config, dict) else {}


def _same(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool | None:
    """Whether two models are of one family and size; None where that is not known."""
    from unlearn.config import conf_dir

    shared = theirs["shape"].keys() & ours["shape"].keys()
    if shared:
        return all(theirs["shape"][key] == ours["shape"][key] for key in shared)
    if None in (theirs["name"], ours["name"]):
        return None
    if theirs["name"] == ours["name"] or (theirs["path"] and theirs["path"] == ours["path"]):
        return True
    presets = {file.stem for file in (conf_dir() / "model").glob("*.yaml")} - {"custom"}
    return False if {theirs["name"], ours["name"]} <= presets else None
