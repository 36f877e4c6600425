"""The time from core to core and back, on whatever machine this is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from infsa_deploy.bench import core_distance
from infsa_deploy.bench.core_distance import core_round_trip_ns

SEVERAL_CORES = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


@pytest.mark.skipif(not SEVERAL_CORES, reason="needs two cores that a process can be bound to")
def test_a_trip_takes_time_and_leaves_no_process_behind(monkeypatch):
    before, partners, fork = os.sched_getaffinity(0), [], os.fork

    def noted_fork():
        partners.append(fork())
        return partners[-1]

    monkeypatch.setattr(os, "fork", noted_fork)
    trips = [core_round_trip_ns() for _ in range(20)]
    assert any(trip is not None for trip in trips)
    assert all(trip > 10 for trip in trips if trip is not None)
    assert os.sched_getaffinity(0) == before
    for partner in partners:
        with pytest.raises(ProcessLookupError):
            os.kill(partner, 0)


def test_one_core_has_no_distance(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    assert core_round_trip_ns() is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert core_round_trip_ns() is None


@pytest.mark.skipif(not SEVERAL_CORES, reason="needs two cores that a process can be bound to")
def test_without_time_it_is_unknown(monkeypatch):
    monkeypatch.setattr(core_distance, "LIMIT_S", -1.0)
    assert core_round_trip_ns() is None


@pytest.mark.skipif(not SEVERAL_CORES, reason="needs two cores that a process can be bound to")
def test_the_partner_says_and_runs_nothing_of_the_program_it_is_a_copy_of():
    program = "\n".join(
        [
            "import atexit, sys",
            "from infsa_deploy.bench.core_distance import core_round_trip_ns",
            "atexit.register(print, 'the end')",
            "sys.stdout.write('kept back ')",
            "core_round_trip_ns()",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("kept back the end\n", "")
