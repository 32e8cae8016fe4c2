"""Bootstrap: how a value moves when its examples are drawn anew. Percentile intervals (Efron 1979).

scipy.stats.bootstrap resamples one statistic at a time; here all metrics of a set share its resamples, so that what is
computed from several of them (model utility, the aggregates) moves as it would with other examples.

Legend of shapes: B resamples; N, M rows with a score. counts_BN says how often each row is drawn. A statistic is nan
where a resample holds no row with a score.
"""

from __future__ import annotations

import math
import zlib
from typing import Literal

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95


def draw(n: int, key: str, resamples: int = RESAMPLES) -> np.ndarray:
    """counts_BN of `resamples` draws of n rows out of n with replacement; the same for the same n and key."""
    rng = np.random.default_rng(zlib.crc32(key.encode()))
    drawn_BN = rng.integers(0, max(n, 1), size=(resamples, n)) + n * np.arange(resamples)[:, None]
    return np.bincount(drawn_BN.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def interval(value: float, draws_B: np.ndarray) -> list[float]:
    """[low, high] that hold LEVEL of the draws between them, and the value itself.

    The value lies outside where resampling moves a statistic to one side (the p-value of two equal samples is 1, and
    of their resamples less); without it no table or plot could show the two together.
    """
    finite = draws_B[np.isfinite(draws_B)]
    if not finite.size:
        return [value, value]
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [min(float(low), value), max(float(high), value)]


def mean(x_N: np.ndarray, counts_BN: np.ndarray) -> np.ndarray:
    """Mean of each resample."""
    centre = float(x_N.mean())  # exact for equal values
    with np.errstate(invalid="ignore"):
        means_B: np.ndarray = centre + counts_BN @ (x_N - centre) / counts_BN.sum(axis=1)
    return means_B


def median(x_N: np.ndarray, counts_BN: np.ndarray) -> np.ndarray:
    """Median of each resample, the mean of the two middle values where it has an even number of rows."""
    order = np.argsort(x_N, kind="stable")
    below_BN = np.cumsum(counts_BN[:, order], axis=1)
    n_B = below_BN[:, -1]
    middle = [(below_BN <= np.floor(k_B)[:, None]).sum(axis=1) for k_B in ((n_B - 1) / 2, n_B / 2)]
    low_B, high_B = (x_N[order][np.minimum(index_B, len(x_N) - 1)] for index_B in middle)
    return np.where(n_B > 0, (low_B + high_B) / 2, np.nan)


def auc(members_N: np.ndarray, counts_BN: np.ndarray, others_M: np.ndarray, counts_BM: np.ndarray) -> np.ndarray:
    """P(score of a non-member > score of a member), ties half, of each pair of resamples."""
    below_BM = _at_most(members_N, counts_BN, others_M, "left")
    up_to_BM = _at_most(members_N, counts_BN, others_M, "right")
    n_pairs_B = counts_BN.sum(axis=1) * counts_BM.sum(axis=1)
    with np.errstate(invalid="ignore"):
        aucs_B: np.ndarray = ((below_BM + up_to_BM) * counts_BM).sum(axis=1) / 2 / n_pairs_B
    return aucs_B


def ks_p_value(a_N: np.ndarray, counts_BN: np.ndarray, b_M: np.ndarray, counts_BM: np.ndarray) -> np.ndarray:
    """p-value of the two-sided two-sample Kolmogorov-Smirnov test of each pair of resamples."""
    points = np.unique(np.concatenate([a_N, b_M]))
    n_B, m_B = counts_BN.sum(axis=1), counts_BM.sum(axis=1)
    with np.errstate(invalid="ignore"):
        cdf_a, cdf_b = _at_most(a_N, counts_BN, points) / n_B[:, None], _at_most(b_M, counts_BM, points) / m_B[:, None]
        keys = np.stack([np.abs(cdf_a - cdf_b).max(axis=1).round(12), 2 * n_B * m_B / (n_B + m_B)], axis=1)
    distinct, place_B = np.unique(keys, axis=0, return_inverse=True)
    return np.array([ks_tail(distance, n) for distance, n in distinct])[place_B.ravel()]


def ks_tail(distance: float, n: float) -> float:
    """P(D >= distance) for two samples of n rows from one continuous distribution (Gnedenko and Korolyuk 1951).

    Exact, and what scipy.stats.ks_2samp gives, for equal sizes. For unequal ones n is their harmonic mean: close, and
    the same limit.
    """
    from scipy.special import gammaln

    if not math.isfinite(distance) or not n:
        return math.nan
    step = distance * n
    if step == 0:
        return 1.0
    jumps = step * np.arange(1, math.floor(n / step + 1e-9) + 1)
    terms = np.exp(2 * gammaln(n + 1) - gammaln(n - jumps + 1) - gammaln(n + jumps + 1))
    terms[1::2] *= -1
    return float(min(1.0, max(0.0, 2 * terms.sum())))


def _at_most(
    x_N: np.ndarray, counts_BN: np.ndarray, points: np.ndarray, side: Literal["left", "right"] = "right"
) -> np.ndarray:
    """How many drawn rows lie at or below ("left": below) each point, for each resample."""
    order = np.argsort(x_N, kind="stable")
    up_to_BN = np.zeros((len(counts_BN), len(x_N) + 1))
    np.cumsum(counts_BN[:, order], axis=1, out=up_to_BN[:, 1:])
    return up_to_BN[:, np.searchsorted(x_N[order], points, side=side)]
