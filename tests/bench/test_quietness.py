"""What others took, from counters with known answers."""

from __future__ import annotations

import os
from itertools import accumulate

import pytest

from infsa_deploy.bench import quietness
from infsa_deploy.bench.quietness import CpuTimes, cpu_times, others_share


def test_what_was_busy_and_not_ours_is_theirs():
    before = CpuTimes(total_s=100.0, busy_s=40.0, own_s=10.0)
    after = CpuTimes(total_s=120.0, busy_s=55.0, own_s=20.0)
    assert others_share(before, after) == (0.25, None)


def test_ours_a_tick_above_what_was_busy_is_none_of_theirs():
    assert others_share(CpuTimes(10.0, 5.0, 5.0), CpuTimes(12.0, 7.0, 7.01)) == (0.0, None)


@pytest.mark.parametrize("after", [None, CpuTimes(10.0, 5.0, 6.0)])
def test_no_counters_and_frozen_ones_are_a_reason(after):
    share, reason = others_share(CpuTimes(10.0, 5.0, 5.0), after)
    assert share is None
    assert "/proc/stat" in reason


def test_idle_and_waiting_are_not_busy(tmp_path, monkeypatch):
    second = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    monkeypatch.setattr(quietness, "STAT", stat)
    assert cpu_times() is None
    stat.write_text("cpu " + " ".join(str(second * n) for n in (1, 2, 3, 40, 50, 6, 7, 8, 900, 900)) + "\ncpu0 0\n")
    found = cpu_times()
    assert (found.total_s, found.busy_s) == (117.0, 27.0)
    assert found.own_s > 0


@pytest.mark.parametrize(
    ("busy_s", "free"),
    [([0.0] * 5, 4), ([0.4] * 5, 4), ([1.1] * 5, 3), ([4.0] * 5, 1), ([4.0, 4.0, 0.0, 0.1, 0.0], 4)],
)
def test_cores_that_stay_busy_are_not_free(busy_s, free, monkeypatch):
    totals = accumulate(busy_s, initial=50.0)
    counters = iter([CpuTimes(100.0 + 4 * watch, busy, 1.0) for watch, busy in enumerate(totals)])
    monkeypatch.setattr(quietness, "cpu_times", lambda: next(counters))
    monkeypatch.setattr(quietness, "usable_cores", lambda: 4)
    monkeypatch.setattr(quietness.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(quietness, "WATCHED_S", 0.0)
    assert quietness.free_cores() == free
