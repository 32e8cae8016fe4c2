"""Published numbers, recomputed from the published scores of single examples."""

from __future__ import annotations

import functools
import json
import statistics
from typing import Any

import pytest

from tests.conftest import SHARED, needs_shared
from unlearn.evaluation import formulas
from unlearn.evaluation.logs import read_log
from unlearn.evaluation.metrics import UTILITY_SETS, evaluate
from unlearn.evaluation.scores import Scores
from unlearn.evaluation.values import harmonic_mean

pytestmark = needs_shared

EXACT = 1e-9
TOFU = SHARED / "tofu_eval_logs"
OPEN_UNLEARNING = SHARED / "open_unlearning_eval_logs"
LLAMA, PHI = "locuslab_tofu/ft_epoch5_lr1e-05_llama2-7b", "locuslab_tofu/ft_epoch5_lr2e-05_phi"
TOFU_RUNS = [
    *(f"{model}_{data}_wd0.01" for model in (LLAMA, PHI) for data in ("full", "retain90", "retain95", "retain99")),
    "npo/retain90_llama_wd0.01",
    "npo/retain90_phi_wd0.01",
]
MODEL = "tofu_Llama-3.2-1B-Instruct"
FULL_AND_RETAIN = [
    (f"{MODEL}_full/evals_forget{a}", f"{MODEL}_retain{b}") for a, b in (("01", 99), ("05", 95), ("10", 90))
]
OPEN_UNLEARNING_RUNS = [run for pair in FULL_AND_RETAIN for run in pair]
EXPECTED_SETS = {"forget": "forget", "retain": "retain", "ra": "real_authors", "wf": "world_facts"}


@functools.cache
def tofu(run: str) -> Scores:
    return read_log(TOFU / run)


@functools.cache
def open_unlearning(run: str) -> Scores:
    return read_log(OPEN_UNLEARNING / run)


@functools.cache
def logged(run: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads((OPEN_UNLEARNING / run / "TOFU_EVAL.json").read_text())
    return log


def expected() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((TOFU / "expected.json").read_text())
    return content


@pytest.mark.parametrize("run", TOFU_RUNS)
def test_tofu_terms_with_both_truth_ratios_and_model_utility(run: str) -> None:
    values = evaluate(tofu(run), None)
    numbers = expected()["runs"][run]
    for kind, truth_ratio in (("geo", "truth_ratio"), ("arith", "truth_ratio_arithmetic")):
        terms = {"prob": "prob", "rougeL": "rouge_l_recall", "tr": truth_ratio}
        for short, name in EXPECTED_SETS.items():
            for term, metric in terms.items():
                assert values[f"{name}.{metric}"]["value"] == pytest.approx(numbers[kind][short][term], abs=EXACT)
        nine = {f"{name}.{metric}": values[f"{name}.{metric}"] for name in UTILITY_SETS for metric in terms.values()}
        assert harmonic_mean(nine)["value"] == pytest.approx(numbers[kind]["model_utility"], abs=EXACT)
    assert values["model_utility"]["value"] == pytest.approx(numbers["geo"]["model_utility"], abs=EXACT)
    assert values["forget.prob"]["n"] == numbers["n"]["eval_log_forget.json"]


@pytest.mark.parametrize("pair", range(4))
def test_tofu_forget_quality(pair: int) -> None:
    comparison = expected()["forget_quality"][pair]
    values = evaluate(tofu(comparison["unlearned"]), tofu(comparison["retain"]))
    assert values["forget_quality"]["value"] == pytest.approx(comparison["pvalue"], rel=EXACT)
    retrained = comparison["unlearned"].startswith("npo/")  # the NPO authors' own retrained models
    assert values["forget_quality"]["note"] == ("matched" if retrained else "under-forgotten")


@pytest.mark.parametrize("run", OPEN_UNLEARNING_RUNS)
def test_open_unlearning_metrics(run: str) -> None:
    values = evaluate(open_unlearning(run), None)
    log = logged(run)
    summary = json.loads((OPEN_UNLEARNING / run / "TOFU_SUMMARY.json").read_text())
    names = {
        "model_utility": "model_utility",
        "forget.prob": "forget_Q_A_Prob",
        "forget.rouge_l_recall": "forget_Q_A_ROUGE",
        "forget.exact_memorization": "exact_memorization",
        "forget.extraction_strength": "extraction_strength",
        "forget.loss_auc": "mia_loss",
        "forget.zlib_auc": "mia_zlib",
        "forget.min_k_auc": "mia_min_k",
        "forget.min_k_plus_plus_auc": "mia_min_k_plus_plus",
    }
    for ours, theirs in names.items():
        assert values[ours]["value"] == pytest.approx(summary[theirs], abs=EXACT), ours
    terms = {"forget.truth_ratio": "forget_truth_ratio", "retain.prob": "retain_Q_A_Prob"}
    for prefix, name in (("retain", "retain"), ("ra", "real_authors"), ("wf", "world_facts")):
        terms |= {f"{name}.truth_ratio": f"{prefix}_Truth_Ratio", f"{name}.rouge_l_recall": f"{prefix}_Q_A_ROUGE"}
    for prefix, name in (("ra", "real_authors"), ("wf", "world_facts")):
        terms |= {f"{name}.prob": f"{prefix}_Q_A_Prob_normalised", f"{name}.prob_raw": f"{prefix}_Q_A_Prob"}
    for ours, theirs in terms.items():
        assert values[ours]["value"] == pytest.approx(log[theirs]["agg_value"], abs=EXACT), ours


@pytest.mark.parametrize(("full", "retain"), FULL_AND_RETAIN)
def test_open_unlearning_comparisons_with_the_retained_model(full: str, retain: str) -> None:
    values = evaluate(open_unlearning(full), open_unlearning(retain))
    assert values["forget_quality"]["value"] == pytest.approx(logged(full)["forget_quality"]["agg_value"], rel=EXACT)
    assert values["privleak"]["value"] == pytest.approx(logged(full)["privleak"]["agg_value"], abs=EXACT)
    # the retained models' own logs had no reference: open-unlearning then takes an AUC of 0.5
    auc = evaluate(open_unlearning(retain), None)["forget.min_k_auc"]["value"]
    assert auc is not None
    assert formulas.privleak(auc, 0.5) == pytest.approx(logged(retain)["privleak"]["agg_value"], abs=EXACT)


@pytest.mark.parametrize("run", OPEN_UNLEARNING_RUNS)
def test_open_unlearning_scores_follow_our_formulas(run: str) -> None:
    """From the logged losses; open-unlearning's 1e-10 under the ratio, and its float32 probabilities, are the rest."""
    for name in ("forget", *UTILITY_SETS):
        for row in open_unlearning(run).rows(name):
            assert row.nll is not None
            assert row.nll_paraphrase is not None
            assert row.prob == pytest.approx(formulas.prob(row.nll), rel=3e-7)
            ratio = formulas.truth_ratio(row.nll_paraphrase, row.nll_perturbed)
            p_paraphrase = formulas.prob(row.nll_paraphrase)
            assert row.truth_ratio == pytest.approx(ratio * p_paraphrase / (p_paraphrase + 1e-10), rel=1e-12)
            if name == "forget":
                assert row.answer is not None
                assert row.zlib == pytest.approx(formulas.zlib_score(row.nll, row.answer), rel=1e-12)


@pytest.mark.parametrize("run", [*TOFU_RUNS, *OPEN_UNLEARNING_RUNS])
def test_rouge_of_the_logged_texts_is_the_logged_rouge(run: str) -> None:
    """Exact; every 8th text of each set, since ROUGE of the long ones takes milliseconds."""
    scores = tofu(run) if run in TOFU_RUNS else open_unlearning(run)
    n_compared = 0
    for name in ("forget", *UTILITY_SETS):
        for row in scores.rows(name)[::8]:
            assert row.answer is not None
            assert row.generated is not None
            rouge = formulas.rouge(row.answer, row.generated)
            assert rouge is not None
            assert (rouge.rouge_1_recall, rouge.rouge_l_recall) == (row.rouge_1_recall, row.rouge_l_recall)
            assert row.rouge_l_f1 in (None, rouge.rouge_l_f1)
            n_compared += 1
    assert n_compared > 60


MUSE = "muse_Llama-2-7b-hf_News"
MUSE_RUNS = [f"{MUSE}_target", f"{MUSE}_retrain"]
MUSE_TEXTS = ("forget_knowmem", "retain_knowmem", "forget_verbmem")


@functools.cache
def muse_log(run: str) -> dict[str, Any]:
    log: dict[str, Any] = json.loads((OPEN_UNLEARNING / run / "MUSE_EVAL.json").read_text())
    return log


def auc_of(metric: dict[str, Any]) -> float:
    scores = {name: [row["score"] for row in metric[name]["value_by_index"].values()] for name in ("forget", "holdout")}
    return formulas.auc(scores["forget"], scores["holdout"])


@pytest.mark.parametrize("run", MUSE_RUNS)
def test_muse_every_aggregate_of_the_log(run: str) -> None:
    log = muse_log(run)
    scores = open_unlearning(run)
    values = evaluate(scores, None)
    means = {
        "exact_memorization": ("forget_verbmem", "exact_memorization"),
        "extraction_strength": ("forget_verbmem", "extraction_strength"),
        **{f"{name}_ROUGE": (name, "rouge_l_f1") for name in MUSE_TEXTS},
    }
    found = {metric: values_of(scores, *place) for metric, place in means.items()}
    attacks = ("loss", "zlib", "min_k", "min_k_plus_plus")
    found |= {f"mia_{attack}": values[f"forget.{attack}_auc"]["value"] for attack in attacks}
    # attacks that have no metric here: a gradient's norm, and a loss relative to another model's
    found |= {name: auc_of(log[name]) for name in ("mia_gradnorm", "mia_reference") if name in log}
    assert found.keys() | {"privleak"} == log.keys()
    for name, value in found.items():
        assert value == pytest.approx(log[name]["agg_value"], abs=EXACT), name
    assert {name: len(rows) for name, rows in scores.sets.items()} == dict.fromkeys(
        [*MUSE_TEXTS, "forget", "holdout"], 100
    )


def values_of(scores: Scores, name: str, score: str) -> float:
    return statistics.fmean(getattr(row, score) for row in scores.rows(name))


def test_muse_privleak() -> None:
    target, retrain = (open_unlearning(run) for run in MUSE_RUNS)
    assert evaluate(target, retrain)["privleak"]["value"] == pytest.approx(-99.81108310247458, abs=EXACT)
    assert muse_log(MUSE_RUNS[0])["privleak"]["agg_value"] == -99.81108310247458
    # the retrained model's own log had no reference: open-unlearning then takes an AUC of 0.5
    auc = evaluate(retrain, None)["forget.min_k_auc"]["value"]
    assert auc is not None
    assert formulas.privleak(auc, 0.5) == pytest.approx(-4.7199999990560135, abs=EXACT)


@pytest.mark.parametrize("run", MUSE_RUNS)
def test_muse_headline_numbers_are_those_of_its_own_scorer(run: str) -> None:
    """MUSE scores ROUGE-L F1 without a stemmer; open-unlearning logs it with one."""
    from rouge_score.rouge_scorer import RougeScorer

    unstemmed, stemmed = (RougeScorer(["rougeL"], use_stemmer=stem) for stem in (False, True))
    values = evaluate(open_unlearning(run), None)
    for name, headline in zip(MUSE_TEXTS, ("knowmem_f", "knowmem_r", "verbmem_f"), strict=True):
        rows = list(muse_log(run)[f"{name}_ROUGE"]["value_by_index"].values())
        texts = [(row["ground_truth"], row["generation"]) for row in rows]
        expected = statistics.fmean(unstemmed.score(*pair)["rougeL"].fmeasure for pair in texts)
        assert values[headline]["value"] == pytest.approx(expected, abs=EXACT)
        assert values[headline]["n"] == 100
        assert [row["rougeL_f1"] for row in rows] == [stemmed.score(*pair)["rougeL"].fmeasure for pair in texts]
