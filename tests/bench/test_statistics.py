"""Percentiles, variation, ratios and warm-up on numbers with known answers."""

from __future__ import annotations

import random

import pytest

from infsa_deploy.bench.statistics import percentile, settled, speedup, summarise, variation


def test_percentiles_interpolate_and_need_enough_values():
    values = [float(value) for value in range(101)]
    random.Random(0).shuffle(values)
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.9) == 90
    assert percentile(values, 0.99) == 99
    assert percentile([0.0, 1.0, 2.0, 3.0], 0.5) == 1.5
    assert percentile(values[:9], 0.9) is None
    assert percentile(values[:10], 0.9) is not None
    assert percentile(values[:99], 0.99) is None
    assert percentile(values[:100], 0.99) is not None


def test_variation():
    assert variation([2.0, 4.0]) == pytest.approx(2**0.5 / 3)
    assert variation([5.0]) == 0.0


def test_summary():
    latency = summarise([[10.0, 30.0, 20.0], [40.0]], batch=8, warm_up_calls=3, stable=True)
    assert latency.calls == 4
    assert latency.round_p50_ms == (20.0, 40.0)
    assert latency.p50_ms == 25.0
    assert latency.p90_ms is None
    assert latency.images_per_s == pytest.approx(8 / 0.025)


def test_a_slow_round_leaves_the_ratio_alone():
    disturbed = (1.0, 3.0, 1.0, 1.0)  # something else took two thirds of the machine in the second round
    base = summarise([[20.0 * times] for times in disturbed], 1, 1, True)
    other = summarise([[5.0 * times] for times in disturbed], 1, 1, True)
    assert speedup(base, other) == 4.0
    assert speedup(base, base) == 1.0
    assert base.cv > 0.5


def test_rounds_that_one_side_skipped_do_not_count():
    base = summarise([[20.0], [20.0], [20.0]], 1, 1, True)
    other = summarise([[5.0], [5.0], [5.0], [5.0], [5.0]], 1, 1, True)
    assert speedup(base, other) == 4.0


def test_settled():
    assert not settled([1.0, 1.0])
    assert not settled([9.0, 1.0, 1.2])
    assert settled([9.0, 1.0, 1.02, 1.04])
