"""Published evaluation logs -> the same Scores as from records.

Read, under any file name: open-unlearning's TOFU_EVAL.json and MUSE_EVAL.json, and the TOFU authors'
eval_log_aggregated.json (columns are objects keyed by "0", "1" ... or, as the NPO authors write them, lists). A row has
what its log holds; ids are "forget/0", "forget/1" ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearn.evaluation import formulas
from unlearn.evaluation.scores import Row, Scores, complete

FILE_NAMES = ("TOFU_EVAL.json", "MUSE_EVAL.json", "eval_log_aggregated.json")
NEEDED = "an open-unlearning TOFU_EVAL.json or MUSE_EVAL.json or a TOFU eval_log_aggregated.json"

Fields = dict[str, Any]

_SIMILARITY = {
    "rouge1_recall": "rouge_1_recall",
    "rougeL_recall": "rouge_l_recall",
    "rougeL_f1": "rouge_l_f1",
    "input": "prompt",
    "ground_truth": "answer",
    "generation": "generated",
}


MetricPaths = Mapping[tuple[str, ...], tuple[str, Mapping[str, str]]]
"""Path of a metric in a file -> (our set, {the log's name of a score: ours})."""


def _attacks() -> MetricPaths:
    scores = {"loss": "nll", "zlib": "zlib", "min_k": "min_k", "min_k_plus_plus": "min_k_plus_plus"}
    return {(f"mia_{a}", name): (name, {"score": ours}) for a, ours in scores.items() for name in ("forget", "holdout")}


def _memorization(name: str) -> MetricPaths:
    return {(metric,): (name, {"score": metric}) for metric in ("exact_memorization", "extraction_strength")}


def _tofu_metrics() -> MetricPaths:
    metrics = {("forget_truth_ratio",): ("forget", {"score": "truth_ratio"}), **_memorization("forget"), **_attacks()}
    for prefix, name in (("forget", "forget"), ("retain", "retain"), ("ra", "real_authors"), ("wf", "world_facts")):
        metrics[f"{prefix}_Q_A_Prob",] = (name, {"avg_loss": "nll", "prob": "prob"})
        metrics[f"{prefix}_Q_A_Prob_normalised",] = (name, {"prob": "prob_options"})
        metrics[f"{prefix}_Q_A_PARA_Prob",] = (name, {"avg_loss": "nll_paraphrase"})
        metrics[f"{prefix}_Q_A_PERT_Prob",] = (name, {"avg_loss": "nll_perturbed"})
        metrics[f"{prefix}_Q_A_ROUGE",] = (name, _SIMILARITY)
        metrics[f"{prefix}_Truth_Ratio",] = (name, {"score": "truth_ratio"})
    return metrics


MUSE_GENERATED = ("forget_knowmem", "retain_knowmem", "forget_verbmem")

OPEN_UNLEARNING: dict[str, MetricPaths] = {
    "TOFU": _tofu_metrics(),
    # open-unlearning measures memorization on the prompts of verbmem, the attacks on the texts of privleak.
    "MUSE": {
        **{(f"{name}_ROUGE",): (name, _SIMILARITY) for name in MUSE_GENERATED},
        **_memorization("forget_verbmem"),
        **_attacks(),
    },
}
TOFU_FILES = {
    "eval_log_forget.json": "forget",
    "eval_log.json": "retain",
    "eval_real_author_wo_options.json": "real_authors",
    "eval_real_world_wo_options.json": "world_facts",
}
TOFU_COLUMNS = {
    "avg_gt_loss": "nll",
    "num_token_gt": "n_tokens",
    "avg_paraphrased_loss": "nll_paraphrase",
    "average_perturb_loss": "nll_perturbed",
    "rouge1_recall": "rouge_1_recall",
    "rougeL_recall": "rouge_l_recall",
}
TEXTS_COLUMN = "generated_text"
_TEXTS = ("prompt", "generated", "answer")  # the order within generated_text


def read_log(path: Path) -> Scores:
    """Scores of a published log, given as the file or as the folder that holds it.

    ValueError, one line, where the file is absent, malformed or of another kind.
    """
    file = _find(Path(path))
    try:
        log = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: needs {NEEDED}, found no readable JSON ({error})") from None
    if not isinstance(log, dict):
        raise ValueError(f"{file}: needs {NEEDED}, found a JSON {type(log).__name__}")
    if TOFU_FILES.keys() & log.keys():
        sets = _read_tofu(log, file)
    elif any("_Q_A_" in key for key in log):  # the names of the attacks and of memorization are the same in both
        sets = _read_open_unlearning(log, file, OPEN_UNLEARNING["TOFU"])
    elif any(f"{name}_ROUGE" in log for name in MUSE_GENERATED):
        sets = _with_unstemmed(_read_open_unlearning(log, file, OPEN_UNLEARNING["MUSE"]))
    else:
        found = ", ".join(list(log)[:4]) or "no key"
        raise ValueError(f"{file}: needs {NEEDED}, found the keys {found}{' ...' if len(log) > 4 else ''}")
    if not sets:
        raise ValueError(f"{file}: needs {NEEDED}, found no scores of single examples")
    return Scores({name: _finish(rows) for name, rows in sets.items()})


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = logs_in(path)
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none of them"
        raise ValueError(f"{path}: needs one of {', '.join(FILE_NAMES)}, found {found}")
    return files[0]


def logs_in(folder: Path) -> list[Path]:
    """The logs that a folder holds under their published names."""
    return [folder / name for name in FILE_NAMES if (folder / name).is_file()]


def _read_open_unlearning(log: Mapping[str, Any], file: Path, metrics: MetricPaths) -> dict[str, dict[str, Fields]]:
    sets: dict[str, dict[str, Fields]] = {}
    for path, (name, score_names) in metrics.items():
        metric: Any = log
        for key in (*path, "value_by_index"):
            metric = _mapping(metric, f"{file}: {'.'.join(path)}").get(key, {})
        for index, logged in _mapping(metric, f"{file}: {'.'.join(path)}.value_by_index").items():
            where = f"{file}: {'.'.join(path)}[{index}]"
            row = sets.setdefault(name, {}).setdefault(index, {"id": f"{name}/{index}"})
            scores = {} if logged is None else _mapping(logged, where)
            for key, score in score_names.items():
                if scores.get(key) is not None:
                    row.setdefault(score, _checked(scores[key], score, f"{where}.{key}"))
    return sets


def _with_unstemmed(sets: dict[str, dict[str, Fields]]) -> dict[str, dict[str, Fields]]:
    """MUSE scores without the stemmer, open-unlearning logs with it: ours comes from the logged texts."""
    for row in (row for name in MUSE_GENERATED for row in sets.get(name, {}).values()):
        if "answer" in row and "generated" in row:
            rouge = formulas.rouge(row["answer"], row["generated"], stem=False)
            row["rouge_l_f1_unstemmed"] = None if rouge is None else rouge.rouge_l_f1
    for row in (row for name in ("forget", "holdout") for row in sets.get(name, {}).values()):
        row["prompt"] = ""  # the texts of privleak, about which nothing is asked
    return sets


def _read_tofu(log: Mapping[str, Any], file: Path) -> dict[str, dict[str, Fields]]:
    sets: dict[str, dict[str, Fields]] = {}
    for file_name, name in TOFU_FILES.items():
        table = _mapping(log.get(file_name, {}), f"{file}: {file_name}")
        rows: dict[str, Fields] = {}
        for key, column in table.items():
            if key not in TOFU_COLUMNS and key != TEXTS_COLUMN:
                continue
            where = f"{file}: {file_name}.{key}"
            values = _column(column, where)
            if rows and values.keys() != rows.keys():
                raise ValueError(f"{where} needs the {len(rows)} rows of the columns before it, found {len(values)}")
            for index, value in values.items():
                row = rows.setdefault(index, {"id": f"{name}/{index}"})
                row |= _tofu_cell(key, value, f"{where}[{index}]")
        if rows:
            sets[name] = rows
    return sets


def _tofu_cell(key: str, value: Any, where: str) -> Fields:
    if value is None:
        return {}
    if key != TEXTS_COLUMN:
        return {TOFU_COLUMNS[key]: _checked(value, TOFU_COLUMNS[key], where)}
    if not isinstance(value, list) or len(value) != len(_TEXTS):
        raise ValueError(f"{where} needs [prompt, generated, reference], found {_shown(value)}")
    return {name: _checked(text, name, where) for name, text in zip(_TEXTS, value, strict=True)}


def _finish(rows: Mapping[str, Fields]) -> dict[str, Row]:
    """Rows by id; a set without paraphrases is scored against its own answers, as TOFU does."""
    has_paraphrases = any("nll_paraphrase" in row for row in rows.values())
    own = {} if has_paraphrases else {index: {"nll_paraphrase": row.get("nll")} for index, row in rows.items()}
    return {row["id"]: complete(row | own.get(index, {})) for index, row in rows.items()}


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} needs an object, found {_shown(value)}")
    return value


def _column(value: Any, where: str) -> Mapping[str, Any]:
    """A column as {row number: value}, whether the log keeps it as a list or as an object."""
    return {str(index): x for index, x in enumerate(value)} if isinstance(value, list) else _mapping(value, where)


def _checked(value: Any, score: str, where: str) -> Any:
    """The value in the type of the Row's field `score`."""
    if score in _TEXTS:
        if not isinstance(value, str):
            raise ValueError(f"{where} needs a text, found {_shown(value)}")
        return value
    numbers = value if score == "nll_perturbed" and isinstance(value, list) else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"{where} needs a number, found {_shown(number)}")
    return tuple(float(x) for x in numbers) if score == "nll_perturbed" else value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
