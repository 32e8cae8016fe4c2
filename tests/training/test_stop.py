"""Every rule that ends a run early, on numbers by hand."""

from __future__ import annotations

from typing import Any

from unlearn.config import TrainerConfig
from unlearn.training.stop import HoldoutStop, ReferenceStop, RetainGuard, TargetStop


def line(nll_forget: float = 0.0, prob_forget: float = 0.0, nll_retain: float = 0.0) -> dict[str, Any]:
    return {"nll_forget": nll_forget, "prob_forget": prob_forget, "nll_retain": nll_retain}


def test_the_holdout_rule_needs_a_whole_pass_and_both_levels() -> None:
    rule = HoldoutStop(holdout_nll=2.0, holdout_prob=0.1, window=3)
    assert rule.reached(line(9.0)) is None
    assert rule.reached(line()) is None
    assert rule.reached(line()) is not None, "mean loss 3 over one pass"
    assert rule.reached(line()) is None, "the 9 has left the window"
    assert rule.reached(line(6.0, 0.9)) is None, "mean loss 2, mean probability 0.3: some rows are still known"
    assert rule.reached(line(6.0)) is None
    assert rule.reached(line(6.0)) is None
    assert rule.reached(line(6.0)) is not None


def test_a_loss_target_is_a_mean_over_one_pass() -> None:
    rule = TargetStop(TrainerConfig(stop_forget_nll=3.0), window=2)
    assert rule.reached(line(5.0)) is None, "half a pass"
    assert rule.reached(line(0.5)) is None, "mean 2.75"
    reason = rule.reached(line(5.5))
    assert reason == "over one pass the forget loss of 3.000 nats per token reached the target 3"


def test_a_probability_target_is_reached_from_above_and_either_target_will_do() -> None:
    rule = TargetStop(TrainerConfig(stop_forget_prob=0.25, stop_forget_nll=100.0), window=2)
    assert rule.reached(line(1.0, 0.4)) is None
    assert rule.reached(line(1.0, 0.2)) is None, "mean 0.3"
    assert (
        rule.reached(line(1.0, 0.3)) == "over one pass the answers' probability of 0.250 came down to the target 0.25"
    )


def test_the_guard_compares_with_the_start_model() -> None:
    """Fault L11: a retain loss that goes from 2.0 to 9.0 is a collapse."""
    rule = RetainGuard(start_nll=2.0, ratio=3.0, window=2)
    assert rule.reached(line(nll_retain=9.0)) is None, "half a pass"
    assert rule.reached(line(nll_retain=3.0)) is None, "mean 6.0 is 3 times the start, not above it"
    reason = rule.reached(line(nll_retain=9.5))
    assert reason is not None
    assert reason.startswith("collapsed: over one pass the retain loss of 6.250")


def test_the_reference_rule_asks_once_per_epoch() -> None:
    """MUSE: the first epoch after which forget knowledge is at most the reference's."""
    known = iter([0.5, 0.3, 0.1])
    rule = ReferenceStop(lambda: next(known), reference=0.3, name="forget.rouge_l_recall")
    assert rule.reached(line(), epoch_over=False) is None
    assert rule.reached(line(), epoch_over=True) is None, "0.5"
    assert rule.reached(line(), epoch_over=False) is None
    reason = rule.reached(line(), epoch_over=True)
    assert reason == "after an epoch forget.rouge_l_recall of 0.300 is at most the reference's 0.300"
    assert next(known) == 0.1, "asked twice in all"
