"""The registry, and the metrics on scores built by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from tests.evaluation.by_hand import evaluate, make, number, with_rows
from unlearn.evaluation.metrics import METRICS, UTILITY_TERMS
from unlearn.evaluation.scores import SETS, Row, Scores
from unlearn.evaluation.values import Value, harmonic_mean


def test_every_metric_is_documented_and_valued() -> None:
    values = evaluate(make(), make(), intervals=True)
    assert list(values) == list(METRICS)
    for name, metric in METRICS.items():
        assert metric.name == name
        assert all((metric.title, metric.group, metric.formula, metric.source, metric.sets)), name
        assert set(metric.sets) <= set(SETS)
        assert metric.direction in ("higher", "lower", "reference")
        value = values[name]["value"]
        assert value is not None, (name, values[name])
        low, high = metric.range
        assert low - 1e-9 <= value <= high + 1e-9, (name, value)
        assert values[name]["interval"] == [pytest.approx(value)] * 2, name  # equal rows
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)


def test_the_registry_is_light_to_import() -> None:
    """Help texts and tables read it: no torch, and scipy, rouge-score and pyarrow only where they are used."""
    code = (
        "import sys, unlearn.evaluation.metrics; print({'torch', 'scipy', 'rouge_score', 'pyarrow'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


FORGET_SETS = ("forget", "forget_knowmem", "forget_verbmem")
ASKED = (*FORGET_SETS, "retain", "real_authors", "world_facts", "retain_knowmem")


def test_directions() -> None:
    """Arrows of the tables."""
    arrows = {direction: {n for n, m in METRICS.items() if m.direction == direction} for direction in
              ("higher", "lower", "reference")}  # fmt: skip
    assert arrows["reference"] == {
        "forget.loss_auc", "forget.min_k_auc", "forget.min_k_plus_plus_auc", "forget.zlib_auc", "forget_quality_shift",
        "privleak",
    }  # fmt: skip
    assert arrows["lower"] == {
        "forget.rouge_1_recall", "forget.truth_ratio_prob", "forget.paraphrase_prob", "forget.paraphrased_prob",
        "forget.paraphrased_rouge_l_recall", "verbmem_f", "knowmem_f",
        *(f"{name}.{metric}" for name in FORGET_SETS for metric in ("prob", "rouge_l_recall", "rouge_l_f1")),
        *(f"{name}.{metric}" for name in ("forget", "forget_verbmem")
          for metric in ("exact_memorization", "extraction_strength")),
        *(f"{name}.{metric}" for name in ASKED for metric in ("repetition", "perplexity", "gibberish")),
        *(f"{name}.hit_limit" for name in ("forget", "retain", "real_authors", "world_facts")),
        *(f"wmdp_{name}.accuracy" for name in ("bio", "cyber", "chem")),
    }  # fmt: skip


@pytest.mark.parametrize("scores", [Scores({"forget": {}}), Scores({name: {"0": Row("0")} for name in SETS})])
def test_without_scores_every_value_is_null_with_a_reason(scores: Scores) -> None:
    values = evaluate(scores, scores, intervals=True)
    assert values
    for name, value in values.items():
        assert value["value"] is None, name
        assert value["reason"], name
        assert value["n"] == 0


def test_a_benchmark_has_the_metrics_of_its_sets() -> None:
    everything = make()

    def names(*sets: str, prompt: str | None = "Who?") -> set[str]:
        rows = {name: everything.rows(name) for name in sets}
        if prompt == "":
            rows |= {name: make(prompt="").rows(name) for name in ("forget", "retain", "holdout")}
        return set(evaluate(Scores({name: {row.id: row for row in each} for name, each in rows.items()}), None))

    assert names() == set()
    tofu = names("forget", "retain", "holdout", "real_authors", "world_facts")
    assert {"model_utility", "forget_quality", "privleak", "overall", "world_facts.prob"} <= tofu
    assert not any("mem" in name.split(".")[0].replace("memorization", "") or "wmdp" in name for name in tofu)
    assert names("wmdp_cyber") == {"wmdp_cyber.accuracy"}
    assert not names("forget", "retain") & {"model_utility", "privleak", "privacy", "forget.min_k_auc", "overall"}
    # MUSE's forget, retain and holdout are texts: nothing was asked, and there are no wrong answers
    muse = names("forget_knowmem", "retain_knowmem", "forget_verbmem", prompt="")
    assert {"verbmem_f", "knowmem_f", "knowmem_r", "privleak", "privacy", "forget_knowmem.rouge_l_f1"} <= muse
    assert {name for name in muse if name.startswith(("forget.", "retain."))} == {
        "forget.prob", "retain.prob", "forget.exact_memorization", "forget.extraction_strength", "forget.loss_auc",
        "forget.zlib_auc", "forget.min_k_auc", "forget.min_k_plus_plus_auc",
    }  # fmt: skip


def test_scores_whose_prompts_are_not_known_count_as_answers_to_questions() -> None:
    assert "forget_quality" in evaluate(make(prompt=None), make())


def test_truth_ratios_by_set_and_definition() -> None:
    scores = make(nll_paraphrase=-math.log(0.2), nll_perturbed=tuple(-math.log(p) for p in (0.1, 0.4, 0.1)))
    values = {name: value["value"] for name, value in evaluate(scores, None).items()}
    geometric, arithmetic = 0.004 ** (1 / 3) / 0.2, 1.0
    assert values["forget.truth_ratio"] == pytest.approx(geometric)
    assert values["forget.truth_ratio_arithmetic"] == pytest.approx(arithmetic)
    assert values["forget.truth_ratio_prob"] == pytest.approx(1 / (1 + geometric))
    for name in ("retain", "real_authors", "world_facts"):
        assert values[f"{name}.truth_ratio"] == pytest.approx(1 - geometric)
        assert values[f"{name}.truth_ratio_arithmetic"] == pytest.approx(0, abs=1e-12)
        assert values[f"{name}.truth_ratio_prob"] == pytest.approx(1 / (1 + geometric))


def test_probability_among_options_and_raw() -> None:
    values = evaluate(make(nll=1.0, nll_perturbed=(0.75,)), None)
    assert values["real_authors.prob"]["value"] == pytest.approx(0.438, abs=5e-4)
    assert values["real_authors.prob_raw"]["value"] == pytest.approx(math.exp(-1))
    assert values["retain.prob"]["value"] == pytest.approx(math.exp(-1))


def test_model_utility_is_the_harmonic_mean_of_nine_terms() -> None:
    values = evaluate(make(), None)
    terms = [values[name]["value"] for name in UTILITY_TERMS]
    assert len(terms) == 9
    assert values["model_utility"]["value"] == pytest.approx(9 / sum(1 / term for term in terms if term))
    assert values["model_utility"]["n"] == 9


def test_model_utility_of_a_zero_and_of_an_unscored_term() -> None:
    zero = with_rows(make(), "world_facts", rouge_l_recall=[0.0, 0.0])
    assert evaluate(zero, None)["model_utility"]["value"] == 0
    unscored = evaluate(Scores({**make().sets, "world_facts": {}}), None)["model_utility"]
    assert unscored["value"] is None
    assert unscored["reason"].startswith("unscored: world_facts.prob (no world_facts rows)")


def test_harmonic_mean_follows_its_smallest_term() -> None:
    def terms(*numbers: float) -> dict[str, Value]:
        return {str(i): {"value": x, "n": 1} for i, x in enumerate(numbers)}

    # 9 / (8 / 0.9 + 1 / 1e-9)
    assert harmonic_mean(terms(*[0.9] * 8, 1e-9))["value"] == pytest.approx(9e-9, rel=1e-7)
    assert harmonic_mean(terms(*[0.9] * 8, 0))["value"] == 0
    missing: dict[str, Value] = terms(0.9, 0.9) | {"x": {"value": None, "n": 0, "reason": "lost"}}
    assert harmonic_mean(missing) == {"value": None, "n": 2, "reason": "unscored: x (lost)"}


def test_a_model_compared_with_itself() -> None:
    scores = with_rows(make(), "forget", truth_ratio=list(np.linspace(0.1, 3, 80)))
    values = evaluate(scores, scores)
    assert values["forget_quality"] == {"value": 1, "n": 80, "note": "matched"}
    assert values["forget_quality_log10"]["value"] == 0
    assert values["forget_quality_shift"]["value"] == 0
    assert values["privleak"]["value"] == 0


@pytest.mark.parametrize(
    ("ratio", "shift", "word"),
    [(0.48, -0.22, "under-forgotten"), (0.99, 0.29, "over-forgotten"), (0.7, 0, "matched")],
)
def test_the_side_on_which_forget_quality_misses(ratio: float, shift: float, word: str) -> None:
    reference = make(truth_ratio=0.7)
    values = evaluate(make(truth_ratio=ratio), reference)
    assert values["forget_quality_shift"]["value"] == pytest.approx(shift)
    assert values["forget_quality_shift"]["note"] == word
    p = values["forget_quality"]["value"]
    assert p is not None
    assert (p == 1) if word == "matched" else (p < 1e-30)


def test_disjoint_ratios_have_a_tiny_p_value_and_a_finite_logarithm() -> None:
    values = evaluate(make(400, truth_ratio=2.0), make(400, truth_ratio=0.5))
    assert values["forget_quality"]["value"] == pytest.approx(1.1e-239, rel=0.05)
    assert values["forget_quality_log10"]["value"] == pytest.approx(-238.97, abs=0.01)


def test_few_rows_and_unequal_forget_sets_are_noted() -> None:
    assert evaluate(make(49), make(49))["forget_quality"]["note"] == "matched; small n"
    note = evaluate(make(60), make(50))["forget_quality"].get("note")
    assert note == "matched; 60 forget rows against the reference's 50"


def test_without_reference_the_reason_is_the_callers() -> None:
    values = evaluate(make(), None, "run: unlearn-run method=none")
    for name in ("forget_quality", "forget_quality_log10", "forget_quality_shift", "privleak"):
        assert values[name] == {"value": None, "n": 0, "reason": "run: unlearn-run method=none"}
    assert evaluate(make(), Scores())["privleak"]["reason"] == "reference: no forget rows"


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("nll", "forget.loss_auc"),
        ("zlib", "forget.zlib_auc"),
        ("min_k", "forget.min_k_auc"),
        ("min_k_plus_plus", "forget.min_k_plus_plus_auc"),
    ],
)
def test_attacks_take_low_scores_for_members(column: str, name: str) -> None:
    scores = with_rows(make(), "holdout", **{column: [2.0, 3.0, 4.0]})
    assert evaluate(with_rows(scores, "forget", **{column: [0.0, 1.0]}), None)[name] == {"value": 1, "n": 5}
    assert evaluate(with_rows(scores, "forget", **{column: [5.0, 6.0]}), None)[name]["value"] == 0
    assert evaluate(with_rows(scores, "forget", **{column: [3.0, 3.0]}), None)[name]["value"] == 0.5
    assert evaluate(make(), None)[name]["value"] == 0.5


def test_privleak_compares_with_the_reference_model() -> None:
    reference = with_rows(with_rows(make(), "holdout", min_k=[1.0, 2.0]), "forget", min_k=[1.5, 1.5])  # AUC 0.5
    leaking = with_rows(reference, "forget", min_k=[0.5, 1.5])  # pairs above: 2 + 1 of 4, AUC 0.75
    assert evaluate(leaking, reference)["privleak"]["value"] == pytest.approx(100 * (0.25 - 0.5) / 0.5)
    separated = with_rows(reference, "forget", min_k=[0.5, 0.5])
    assert evaluate(leaking, separated)["privleak"]["value"] is None
    assert "fully" in evaluate(leaking, separated)["privleak"]["reason"]


def test_unscored_rows_are_dropped_and_counted_with_their_reason() -> None:
    scores = make()
    scores = with_rows(scores, "forget", prob=[0.2, None, 0.4], fault=[None, "no answer token", None])
    scores = with_rows(scores, "retain", answer=["yes", "東京"], rouge_l_recall=[0.5, None])
    values = evaluate(scores, None)
    assert values["forget.prob"] == {
        "value": pytest.approx(0.3),
        "n": 2,
        "dropped": 1,
        "note": "1 dropped: no answer token",
    }
    assert values["retain.rouge_l_recall"]["value"] == 0.5
    assert values["retain.rouge_l_recall"]["dropped"] == 1
    assert "no ASCII word" in values["retain.rouge_l_recall"]["note"]


def test_values_are_json_without_nan() -> None:
    scores = with_rows(make(), "forget", nll=[math.nan, 0.2], truth_ratio=[math.inf, 0.5], min_k=[math.nan, math.nan])
    values = evaluate(scores, make())
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["forget_quality"]["dropped"] == 1
    assert values["forget.min_k_auc"]["value"] is None


def test_muse_headline_numbers_are_means_without_stemming() -> None:
    scores = make(rouge_l_f1=0.9, rouge_l_f1_unstemmed=0.5)
    scores = with_rows(scores, "forget_verbmem", rouge_l_f1_unstemmed=[0.1, 0.2, None], rouge_l_f1=[1.0, 1.0, 1.0])
    values = evaluate(scores, None)
    assert [values[name]["value"] for name in ("knowmem_f", "knowmem_r")] == [0.5, 0.5]
    assert values["forget_knowmem.rouge_l_f1"]["value"] == pytest.approx(0.9)
    assert values["verbmem_f"]["value"] == pytest.approx(0.15)
    assert values["verbmem_f"]["dropped"] == 1
    assert values["forget_verbmem.rouge_l_f1"]["value"] == 1


def test_wmdp_accuracy_is_the_share_of_right_choices() -> None:
    scores = with_rows(make(), "wmdp_bio", chosen=[1.0, 0.0, 0.0, 1.0, 1.0])
    assert evaluate(scores, None)["wmdp_bio.accuracy"] == {"value": pytest.approx(3 / 5), "n": 5}


def test_paraphrased_answers_and_questions() -> None:
    scores = with_rows(make(), "forget", nll_paraphrase=[-math.log(0.2), -math.log(0.6)], paraphrased_prob=[0.1, 0.5],
                       paraphrased_rouge_l_recall=[0.0, None])  # fmt: skip
    scores = with_rows(scores, "retain", paraphrased_prob=[None], paraphrased_rouge_l_recall=[None])
    values = evaluate(scores, None)
    assert values["forget.paraphrase_prob"]["value"] == pytest.approx((0.2 + 0.6) / 2)
    assert values["forget.paraphrased_prob"]["value"] == pytest.approx((0.1 + 0.5) / 2)
    assert values["forget.paraphrased_rouge_l_recall"]["value"] == 0
    assert "no generated answer" in values["forget.paraphrased_rouge_l_recall"]["note"]
    assert values["retain.paraphrased_prob"]["reason"].endswith("no scored answer to a paraphrased question")


def test_perplexity_is_the_exponential_of_the_mean_over_texts() -> None:
    scores = with_rows(make(), "retain", generated_nll=[1.0, 3.0, None], generated=["a", "b", ""])
    values = evaluate(scores, None)
    assert values["retain.perplexity"]["value"] == pytest.approx(math.exp((1 + 3) / 2))
    assert values["retain.perplexity"]["note"] == "1 dropped: nothing was generated"
    unread = evaluate(make(generated_nll=None), None)["forget.perplexity"]
    assert unread["value"] is None
    assert "was not read by a reference model" in unread["reason"]


def test_gibberish_counts_generations_that_say_nothing() -> None:
    texts = ["It is Hina Ameen", "", "?!", "no " * 40, "It is Hina Ameen"]
    scores = make()
    rows = [make(1, generated=text, generated_nll=nll).rows("forget")[0]
            for text, nll in zip(texts, (1.0, None, 1.0, 1.0, 9.0), strict=True)]  # fmt: skip
    scores = Scores({**scores.sets, "forget": {str(i): row for i, row in enumerate(rows)}})
    values = evaluate(scores, None)
    assert values["forget.gibberish"]["value"] == pytest.approx(4 / 5)
    assert values["fluency"]["value"] == pytest.approx(1 / 5)
    assert values["forget.distinct"]["dropped"] == 1  # the empty text has no pair; "?!" has one
    assert number(values["forget.repetition"]) == pytest.approx((1 - 3 / 119) / 5)  # "no no ... no", 119 characters


def test_without_generations_fluency_is_null() -> None:
    values = evaluate(make(generated=None, generated_nll=None), None)
    for name in ("fluency", "forget.gibberish", "forget.distinct", "forget.repetition", "forget.perplexity"):
        assert values[name]["value"] is None
        assert "no generated text" in values[name]["reason"], name
