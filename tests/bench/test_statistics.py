"""Percentiles, variation, ratios and warm-up on numbers with known answers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from infsa_deploy.bench.statistics import (
    median_interval,
    median_known,
    percentile,
    ratios,
    settled,
    summarise,
    variation,
)
from infsa_deploy.measurements import Latency


def latency(medians: Sequence[float], trips: Sequence[float | None] = (), every: int = 1) -> Latency:
    return summarise([[time] for time in medians], 1, 1, True, every, trips)


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
    found = summarise([[10.0, 30.0, 20.0], [40.0]], batch=8, warm_up_calls=3, stable=True)
    assert found.calls == 4
    assert found.round_p50_ms == (20.0, 40.0)
    assert found.p50_ms == 25.0
    assert found.p90_ms is None
    assert found.images_per_s == pytest.approx(8 / 0.025)


def test_a_slow_round_leaves_the_ratio_alone():
    disturbed = (1.0, 3.0, 1.0, 1.0)  # something else took two thirds of the machine in the second round
    base, other = (latency([time * times for times in disturbed]) for time in (20.0, 5.0))
    assert ratios(base, other) == [4.0] * 4
    assert ratios(base, base) == [1.0] * 4
    assert base.cv > 0.5


def test_rounds_that_one_side_skipped_do_not_count():
    assert ratios(latency([20.0] * 3), latency([5.0] * 5)) == [4.0] * 3


def test_rounds_with_cores_apart_do_not_count():
    times, apart = [20.0] * 6 + [30.0] * 5, [180.0, 200.0] * 3 + [320.0] * 5
    reference, other = latency(times, apart), latency([10.0] * 11, [190.0] * 11)
    assert ratios(reference, other) == [2.0] * 6
    assert ratios(other, reference) == [0.5] * 6
    assert ratios(latency(times, [320.0] * 11), latency([10.0] * 11, [330.0] * 11)) == [2.0] * 6 + [3.0] * 5


def test_all_rounds_count_where_too_few_have_their_cores_together():
    times, apart = [20.0] * 5 + [30.0] * 6, [180.0] * 5 + [320.0] * 6
    assert len(ratios(latency(times, apart), latency(times, apart))) == 11
    assert len(ratios(latency(times, [None] * 11), latency(times, [180.0] * 11))) == 11


def test_a_turn_in_a_span_of_rounds_is_compared_with_all_of_that_span():
    every_round, every_third = latency([1.0, 9.0, 2.0, 4.0, 4.0, 4.0]), latency([10.0, 40.0], every=3)
    assert ratios(every_round, every_third) == [0.2, 0.1]
    assert ratios(every_third, every_round) == [5.0, 10.0]
    assert ratios(every_third, every_third) == [1.0, 1.0]


@pytest.mark.parametrize(("count", "ends"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (12, (3, 10)), (36, (12, 25))])
def test_interval_of_the_median_has_the_ranks_of_printed_tables(count, ends):
    """Ranks as in Hahn and Meeker, Statistical Intervals, for a two-sided 95 % interval of a median."""
    values = [float(value) for value in range(1, count + 1)]
    assert median_interval(values[::-1]) == ends


def test_interval_covers_the_median_as_often_as_it_says():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        low, high = median_interval(generator.standard_cauchy(12).tolist())
        covered += low <= 0.0 <= high
    expected = 1 - 2 * (1 + 12 + 66) / 2**12  # at most two of twelve on one side
    assert abs(covered / 2000 - expected) < 4 * (expected * (1 - expected) / 2000) ** 0.5


def test_too_few_rounds_have_no_interval():
    assert median_interval([1.0] * 5) is None
    assert not median_known([1.0] * 5, precision=0.05)


def test_a_median_is_known_when_its_interval_is_narrow():
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.0, 1.03, 0.97]
    assert median_known(steady, precision=0.05)
    assert not median_known(steady, precision=0.01)
    assert median_known([*steady, 9.0], precision=0.05)  # a slow round does not matter


def test_settled():
    assert not settled([1.0, 1.0])
    assert not settled([9.0, 1.0, 1.2])
    assert settled([9.0, 1.0, 1.02, 1.04])
