"""How sure a difference is, from the counts alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from infsa_deploy.evaluate.results import Estimate

Z = 1.959963984540054  # two-sided 95 % of the normal distribution


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test: twice the smaller tail of Binomial(n, 1/2), at most 1.

    Args: how many cases only the one, and only the other, got right; cases on which both agree do not count.
    Source: Q. McNemar, Psychometrika 12 (1947) 153-157; the exact form is the sign test.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    term = tail = 1
    for k in range(fewer):
        term = term * (n - k) // (k + 1)
        tail += term
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))


def paired_difference(only_first: int, only_second: int, pairs: int) -> Estimate:
    """Accuracy of the second minus that of the first on the same cases, with a 95 % interval.

    The interval is Wald's after one success is added to each kind of disagreement. Source: D. G. Bonett and
    R. M. Price, J. Educational and Behavioral Statistics 37 (2012) 479-488.
    """
    first, second = ((count + 1) / (pairs + 2) for count in (only_first, only_second))
    centre = second - first
    spread = Z * math.sqrt((first + second - centre**2) / (pairs + 2))
    return Estimate((only_second - only_first) / pairs, max(-1.0, centre - spread), min(1.0, centre + spread), pairs)


def proportion(successes: int, trials: int) -> Estimate:
    """A share with Wilson's 95 % score interval. Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209-212."""
    if not trials:
        return Estimate(None, None, None, 0)
    share, weight = successes / trials, Z**2 / trials
    centre = (share + weight / 2) / (1 + weight)
    spread = Z / (1 + weight) * math.sqrt(share * (1 - share) / trials + weight / (4 * trials))
    return Estimate(share, max(0.0, centre - spread), min(1.0, centre + spread), trials)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean of one number within 0..1 an image, with the normal 95 % interval (None for a single image)."""
    if not values:
        return Estimate(None, None, None, 0)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, None, None, 1)
    spread = Z * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, max(0.0, mean - spread), min(1.0, mean + spread), len(values))
