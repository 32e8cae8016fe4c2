"""The registry of metrics: one name, one definition. Reports, tables and docs render what stands here."""

from __future__ import annotations

from unlearn.evaluation.headline_metrics import AGGREGATES, ATTACKS, HEADLINE, UTILITY_TERMS
from unlearn.evaluation.metric import UTILITY_SETS, Direction, Inputs, Metric
from unlearn.evaluation.scores import Scores
from unlearn.evaluation.set_metrics import set_metrics
from unlearn.evaluation.values import Value

__all__ = ["METRICS", "UTILITY_SETS", "UTILITY_TERMS", "Direction", "Metric", "evaluate"]

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*HEADLINE, *AGGREGATES, *set_metrics(), *ATTACKS)}


def evaluate(
    scores: Scores, reference: Scores | None, reason_without_reference: str = "", intervals: bool = True
) -> dict[str, Value]:
    """Every metric of METRICS whose sets the scores have, in its order, with bootstrap intervals if asked for.

    `reference` is the model trained on the retain set alone. Without it, what needs one is None with
    `reason_without_reference` as reason. Its rows are drawn independently of the model's, although both answer the same
    questions: an interval of a comparison is rather too wide than too narrow.
    """
    inputs = Inputs(METRICS, scores, reference, reason_without_reference or "no reference scores", intervals)
    return {name: inputs.estimate(name).finish() for name, metric in METRICS.items() if metric.applies(scores)}
