"""Which target and which reference a run will use, decided before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unlearn.config import RunConfig
from unlearn.data.benchmark import Benchmark
from unlearn.errors import UserError
from unlearn.models import hub, load

TRAIN = "train"


@dataclass(frozen=True)
class Sources:
    """The models of one run besides the one that is trained.

    target     "train", or the folder or hub id of the model that forgets
    reference  "train", a folder, a hub id, an evaluation log, another run's folder, or None with the reason
    """

    target: str
    reference: str | None
    reason: str = ""

    @property
    def reference_is_log(self) -> bool:
        return _is_log(self.reference)


def choose(cfg: RunConfig, retain_name: str) -> tuple[str, str | None]:
    """What model.target and model.reference come to; "auto" takes what is published for the data, else trains.

    `retain_name` names the set that a published reference was trained on ("retain90").
    """
    published = cfg.model.published.get(cfg.data.key) if cfg.data.source != "embedded" else None
    target = cfg.model.target
    if target == "auto":
        target = published.target if published is not None and published.target else TRAIN
    elif target == "self":
        if cfg.model.path is None:
            raise UserError(
                "model.target: self needs weights that know the data; set model.path, or model.target=train"
            )
        target = cfg.model.path
    reference: str | None = cfg.model.reference
    if reference == "auto":
        if published is not None and published.reference and target == published.target:
            reference = published.reference.replace("{retain}", retain_name)
        else:
            reference = TRAIN if target == TRAIN else None
    elif reference == "none":
        reference = None
    return target, reference


def resolve(cfg: RunConfig, benchmark: Benchmark) -> Sources:
    """Decide, and check that everything is there. Raises UserError, also for a reference that nobody can make."""
    target, reference = choose(cfg, benchmark.retain_name)
    faults: list[str] = []
    for path, key in ((target, "model.target"), (reference, "model.reference")):
        faults += _faults(path, key)
    if TRAIN in (target, reference) and cfg.model.path is not None:
        faults += _faults(cfg.model.path, "model.path", cfg.model.revision)
    if reference == TRAIN and target != TRAIN and cfg.model.path is None:
        faults.append("model.reference: train needs the weights to begin with; set model.path to those before the data")
    reason = ""
    if reference is None:
        reason = f"no reference model: nothing trained on {benchmark.retain_name} alone was given"
        if not cfg.suite.allow_missing_reference:
            faults.append(
                f"model.reference: forget_quality and privleak compare with a model trained on {benchmark.retain_name} "
                f"alone; found none for '{cfg.model.name}'. Make one with `unlearn-run ... model.path=BASE_WEIGHTS "
                f"model.target={target} model.reference=train`, name one with model.reference=PATH, or take null for "
                "those metrics with suite.allow_missing_reference=true"
            )
    if faults:
        raise UserError(faults)
    return Sources(target, reference, reason)


def _faults(path: str | None, key: str, revision: str | None = None) -> list[str]:
    if path is None or path == TRAIN:
        return []
    try:
        if key == "model.reference" and _is_log(path):
            from unlearn.evaluation.references import read_reference

            read_reference(Path(path))
        else:
            load.check_source(path, key, revision)
    except UserError as error:
        return error.messages
    except (ValueError, OSError) as error:
        return [f"{key}: {error}"]
    return []


def _is_log(path: str | None) -> bool:
    """Whether a reference is scores that were made before, and no model."""
    if path is None or path == TRAIN:
        return False
    from unlearn.evaluation.references import is_evaluation

    return is_evaluation(path)


def uses_hub(path: str | None) -> bool:
    return path is not None and path != TRAIN and not hub.looks_like_folder(path)
