"""Tests and intervals against values from the literature or by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from infsa_deploy.evaluate.metrics import (
    BINS,
    Z,
    accuracy,
    calibration,
    mcnemar_p_value,
    mean_estimate,
    paired_difference,
    proportion,
)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (1, 1), (0, 6), (2, 5), (5, 2), (4, 4)])
def test_mcnemar_by_enumeration(b, c):
    n = b + c
    extreme = sum(min(sum(flips), n - sum(flips)) <= min(b, c) for flips in itertools.product((0, 1), repeat=n))
    assert mcnemar_p_value(b, c) == pytest.approx(extreme / 2**n)


def test_mcnemar_of_large_counts():
    # The normal approximation with continuity correction: z = (|b - c| - 1) / sqrt(b + c).
    b, c = 5200, 4800
    z = (abs(b - c) - 1) / math.sqrt(b + c)
    assert mcnemar_p_value(b, c) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=2e-2)


def test_paired_difference():
    # Bonett and Price's Laplace-adjusted Wald interval of 4 against 1 in 30: p12 = 5/32, p21 = 2/32.
    found = paired_difference(4, 1, 30)
    centre, spread = -3 / 32, 1.959964 * math.sqrt((7 / 32 - (3 / 32) ** 2) / 32)
    assert (found.mean, found.low, found.high) == pytest.approx((-0.1, centre - spread, centre + spread))
    same = paired_difference(0, 0, 1000)
    assert same.mean == 0
    assert same.low < 0 < same.high  # no disagreement in 1000 images does not prove that there is none


def test_the_interval_of_a_difference_covers_the_truth():
    """At 95 %, about 950 of 1000 intervals hold the true difference; 4 standard deviations are 28."""
    rng = np.random.default_rng(0)
    draws = rng.multinomial(300, [0.05, 0.02, 0.93], size=1000)
    hits = sum(e.low <= -0.03 <= e.high for e in (paired_difference(int(b), int(c), 300) for b, c, _ in draws))
    assert 950 - 28 <= hits <= 1000


def test_wilson():
    found = proportion(15, 20)
    assert found.mean == 0.75
    for bound in (found.low, found.high):  # the shares from which 15 of 20 lie exactly Z standard errors away
        assert abs(0.75 - bound) == pytest.approx(Z * math.sqrt(bound * (1 - bound) / 20))
    assert found.low < 0.75 < found.high
    assert proportion(0, 10).low == 0.0
    assert proportion(10, 10).high == pytest.approx(1.0)
    assert proportion(0, 0).mean is None


def test_mean():
    found = mean_estimate([0.1, 0.2, 0.3, 0.4])
    spread = 1.959964 * math.sqrt(0.05 / 3) / 2
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25 - spread, 0.25 + spread))
    assert (mean_estimate([0.9, 1.0]).high, mean_estimate([0.1, 0.0]).low) == (1.0, 0.0)
    assert (mean_estimate([]).mean, mean_estimate([1.0]).low) == (None, None)


def test_accuracy_by_hand():
    labels = np.array([0, 0, 1, 2, 2])
    ranked = np.array([[0, 1, 2], [1, 0, 2], [1, 2, 0], [0, 1, 2], [2, 0, 1]])[:, :2]
    found = accuracy(labels, ranked, np.full(5, 0.9), ("a", "b", "c", "d"))
    assert found.top1.mean == pytest.approx(3 / 5)
    assert found.top5 == pytest.approx(4 / 5)
    assert found.per_class == {"a": 0.5, "b": 1.0, "c": 0.5, "d": None}
    assert found.confusion == ((1, 1, 0, 0), (0, 1, 0, 0), (1, 0, 1, 0), (0, 0, 0, 0))


def test_calibration_by_hand():
    right = np.array([True, True, False, False])
    error, bins = calibration(right, np.array([0.95, 0.95, 0.95, 0.31]))
    # 3 images at 0.95 of which 2 are right, 1 at 0.31 that is wrong.
    assert error == pytest.approx(3 / 4 * abs(2 / 3 - 0.95) + 1 / 4 * 0.31)
    assert [(b.images, b.accuracy) for b in bins if b.images] == [(1, 0.0), (3, pytest.approx(2 / 3))]
    assert len(bins) == BINS
    assert calibration(np.array([True, False]), np.array([0.5, 0.5]))[0] == 0.0
    assert calibration(np.array([True]), np.array([1.0]))[0] == 0.0
    edge = 4 / BINS  # an edge belongs to the bin below it
    assert [b.images for b in calibration(np.array([True]), np.array([edge]))[1]].index(1) == 3
