"""Agreement with torchjd, wherever it has the rule without a solver."""

from __future__ import annotations

import pytest
import torch
from torchjd import aggregation as jd

from tests.gradients.vectors import Pair, first_update, random_pairs
from unlearn.gradients.combine import IMTLG, MGDA, AlignedMTL, CombineRule, Linear, NGDiff, PCGrad

# torchjd's aggregator, ours, and ours divided by torchjd's. torchjd's Aligned-MTL takes the mean where the paper sums;
# ConFIG of two gradients is the vector with equal cosines to both, at a length of its own.
SAME: list[tuple[jd.Aggregator, CombineRule, float | None]] = [
    (jd.Sum(), Linear(), 1),
    (jd.IMTLG(), IMTLG(), 1),
    (jd.MGDA(epsilon=1e-12, max_iters=1000), MGDA(), 1),
    (jd.PCGrad(), PCGrad(), 1),
    (jd.AlignedMTL(), AlignedMTL(), 2),
    (jd.ConFIG(), NGDiff(), None),
]


@pytest.mark.parametrize(("theirs", "ours", "factor"), SAME, ids=lambda value: getattr(value, "name", ""))
def test_agreement(theirs: jd.Aggregator, ours: CombineRule, factor: float | None) -> None:
    for vectors in random_pairs(count=20, dimension=7):
        assert_agree(theirs, ours, factor, vectors)


def assert_agree(theirs: jd.Aggregator, ours: CombineRule, factor: float | None, vectors: Pair) -> None:
    expected, found = theirs(torch.stack(vectors)), first_update(ours, vectors)
    if factor is None:
        expected, found = expected / expected.norm(), found / found.norm()
    else:
        expected = factor * expected
    scale = float(max(vector.norm() for vector in (*vectors, expected)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7 * scale)
