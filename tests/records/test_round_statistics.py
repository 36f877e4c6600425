"""Percentiles, paired ratios, intervals and warnings on times with known answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from infsa_deploy.records.bench import FAILED, Row
from infsa_deploy.records.round_statistics import (
    cell_warnings,
    latency,
    median_interval,
    paired_ratios,
    percentile,
    row_warnings,
    times_as_fast,
)
from tests.records.test_results_file import CELL, ROW, RUN


def row(rounds: Sequence[Sequence[float]], status: str = "ok") -> Row:
    return replace(ROW, rounds_ms=tuple(map(tuple, rounds)), status=status)


def test_percentiles_interpolate_and_need_enough_values():
    values = [float(value) for value in range(101)]
    random.Random(0).shuffle(values)
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99)] == pytest.approx([50, 90, 99])
    assert percentile([0.0, 1.0, 2.0, 3.0], 0.5) == 1.5
    assert (percentile(values[:9], 0.9), percentile(values[:99], 0.99)) == (None, None)
    assert None not in (percentile(values[:10], 0.9), percentile(values[:100], 0.99))


def test_latency_is_of_all_calls():
    found = latency(row([(10.0, 30.0, 20.0), (), (40.0,)]), batch=8)
    assert (found.calls, found.round_p50_ms, found.p50_ms, found.p90_ms) == (4, (20.0, 40.0), 25.0, None)
    assert found.images_per_s == pytest.approx(8 / 0.025)
    assert found.spread == pytest.approx((32.5 - 17.5) / 25)
    assert latency(row([(2.0, 4.0)]), 1).cv == pytest.approx(2**0.5 / 3)
    assert latency(row([(5.0,)]), 1).cv == 0.0
    assert latency(row([]), 1) is None


def test_a_slow_round_leaves_the_ratio_alone():
    disturbed = (1.0, 3.0, 1.0, 1.0)  # something else took two thirds of the machine in the second round
    base, other = (row([(time * times,) for times in disturbed]) for time in (20.0, 5.0))
    assert paired_ratios(base, other) == [4.0] * 4
    assert times_as_fast(base, base) == 1.0


def test_a_ratio_is_of_rounds_that_both_had():
    early, whole = row([(20.0,), (), (20.0,)], FAILED), row([(5.0,), (1.0,), (4.0,), (1.0,)])
    assert paired_ratios(early, whole) == [4.0, 5.0]
    assert paired_ratios(whole, early) == [0.25, 0.2]
    assert times_as_fast(row([]), whole) is None


def test_the_interval_covers_the_median_about_as_often_as_it_says():
    """Of a median over 12 rounds the percentile bootstrap is known to fall a little short of 95 %."""
    generator = np.random.default_rng(0)
    covered = sum(low <= 0.0 <= high for low, high in (median_interval(generator.normal(size=12)) for _ in range(200)))
    assert 0.87 < covered / 200 < 0.99


def test_the_interval_lies_around_the_median_and_is_the_same_each_time():
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.2, 7.0]
    low, high = median_interval(values)
    assert 0.9 <= low <= 1.05 <= high <= 7.0
    assert median_interval(values) == (low, high)
    assert median_interval([2.0] * 6) == (2.0, 2.0)
    assert median_interval([1.0] * 5) is None


STEADY, EARLY = [(1.0, 1.0)] * 6, "it ended early: its figures are of the"


@pytest.mark.parametrize(
    ("rounds", "status", "warnings"),
    [
        (STEADY, "ok", []),
        ([(1.0, 1.0, 1.3, 1.3)] * 6, "ok", ["spread 26%, above 10%"]),
        (STEADY, FAILED, [f"{EARLY} 6 rounds before"]),
        (STEADY[:5], "ok", ["5 rounds, fewer than 6: no interval"]),
        (STEADY[:2], FAILED, [f"{EARLY} 2 rounds before", "2 rounds, fewer than 6: no interval"]),
        ([], FAILED, []),
    ],
)
def test_warnings_of_a_contender(rounds, status, warnings):
    assert list(row_warnings(row(rounds, status), replace(CELL, rounds=6))) == warnings


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"rounds": 5}, "5 rounds, fewer than 6: no intervals"),
        ({"steal_share": 0.03}, "the hypervisor took 3.0% of the CPU time, above 2%"),
        ({"load_average": 3.1}, "load average 3.1 on 2 cores at the end of the rounds"),
    ],
)
def test_warnings_of_a_cell(changes, warning):
    quiet = replace(CELL, rounds=6, steal_share=0.02, load_average=2.4)  # our own threads on both cores
    assert cell_warnings(quiet, RUN) == ()
    assert cell_warnings(replace(quiet, **changes), RUN) == (warning,)


def test_warnings_of_a_run():
    quiet = replace(CELL, rounds=6)
    busy = replace(RUN, load_average=4.0, settings=replace(RUN.settings, quick=True))
    warnings = cell_warnings(quiet, busy)
    assert warnings == ("quick run: the numbers are rough", "load average 4.0 on 2 cores before the run")
