"""Percentiles, variation, ratios and warm-up on numbers with known answers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from infsa_deploy.bench.statistics import (
    Turns,
    median_interval,
    median_known,
    percentile,
    ratios,
    settled,
    summarise,
    variation,
)


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
    assert ratios(Turns(base.round_p50_ms), Turns(other.round_p50_ms)) == [4.0] * 4
    assert ratios(Turns(base.round_p50_ms), Turns(base.round_p50_ms)) == [1.0] * 4
    assert base.cv > 0.5


def test_rounds_that_one_side_skipped_do_not_count():
    assert ratios(Turns([20.0] * 3), Turns([5.0] * 5)) == [4.0] * 3


def test_rounds_with_cores_apart_do_not_count():
    times, apart = [20.0] * 6 + [30.0] * 5, [180.0, 200.0] * 3 + [320.0] * 5
    reference, other = Turns(times, apart), Turns([10.0] * 11, [190.0] * 11)
    assert ratios(reference, other) == [2.0] * 6
    assert ratios(other, reference) == [0.5] * 6
    assert ratios(Turns(times, [320.0] * 11), Turns([10.0] * 11, [330.0] * 11)) == [2.0] * 6 + [3.0] * 5


def test_all_rounds_count_where_too_few_have_their_cores_together():
    times, apart = [20.0] * 5 + [30.0] * 6, [180.0] * 5 + [320.0] * 6
    assert len(ratios(Turns(times, apart), Turns(times, apart))) == 11
    assert len(ratios(Turns(times, [None] * 11), Turns(times, [180.0] * 11))) == 11


def test_a_turn_in_a_span_of_rounds_is_compared_with_all_of_that_span():
    every_round, every_third = Turns([1.0, 9.0, 2.0, 4.0, 4.0, 4.0]), Turns([10.0, 40.0], every=3)
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
