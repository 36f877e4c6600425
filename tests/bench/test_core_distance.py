"""The time from core to core and back, on whatever machine this is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from infsa_deploy.bench import core_distance
from infsa_deploy.bench.core_distance import Cores, core_pair

needs_two_cores = pytest.mark.skipif(core_pair() is None, reason="needs two cores that a process can be bound to")


@pytest.fixture
def partners(monkeypatch):
    """The processes that were made meanwhile."""
    noted: list[int] = []
    fork = os.fork

    def noted_fork():
        process = fork()
        if process:
            noted.append(process)
        return process

    monkeypatch.setattr(os, "fork", noted_fork)
    return noted


@pytest.fixture
def scripted(monkeypatch):
    """Cores whose trips take what a list says, and the list of what was done to them."""

    def cores(*trips: float | None) -> tuple[Cores, list[str]]:
        done: list[str] = []
        left = [*[100.0] * core_distance.MOST_GATHERINGS, *trips]
        monkeypatch.setattr(core_distance, "_round_trip_ns", lambda first, last: done.append("trip") or left.pop(0))
        monkeypatch.setattr(core_distance, "_wake_each_other", lambda first, last: done.append("wake"))
        found = Cores((0, 1))
        assert done == ["wake", "trip"] * core_distance.MOST_GATHERINGS
        done.clear()
        return found, done

    return cores


@needs_two_cores
def test_a_trip_takes_time_and_leaves_no_process_behind(partners):
    before = os.sched_getaffinity(0)
    files = len(os.listdir("/proc/self/fd"))
    cores = Cores(core_pair())
    trips = [cores.gathered_round_trip_ns() for _ in range(10)]
    assert any(trip is not None for trip in trips)
    assert all(trip > 10 for trip in trips if trip is not None)
    assert os.sched_getaffinity(0) == before
    assert len(os.listdir("/proc/self/fd")) == files
    for partner in partners:
        with pytest.raises(ProcessLookupError):
            os.kill(partner, 0)


@needs_two_cores
def test_waking_each_other_ends_with_a_partner_that_is_killed(partners, monkeypatch):
    monkeypatch.setattr(core_distance, "GATHERING_S", 30.0)
    killer = threading.Timer(0.3, lambda: os.kill(partners[0], signal.SIGKILL))
    killer.start()
    started = time.monotonic()
    core_distance._wake_each_other(*core_pair())
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("trips", "woken"),
    [((110.0,), 0), ((141.0, 300.0, 139.0), 2), ((None,), 0), ((300.0,) * 11, 10), ((50.0, 100.0), 0)],
)
def test_cores_that_are_apart_are_gathered(trips, woken, scripted):
    cores, done = scripted(*trips)
    cores.gathered_round_trip_ns()
    assert done.count("wake") == woken


def test_near_is_what_was_nearest(scripted):
    cores, done = scripted(50.0, 100.0, 60.0)
    assert [cores.gathered_round_trip_ns(), cores.gathered_round_trip_ns()] == [50.0, 60.0]
    assert done == ["trip", "trip", "wake", "trip"]


def test_one_core_has_no_distance(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert core_pair() is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert core_pair() is None
    assert Cores(None).gathered_round_trip_ns() is None


@needs_two_cores
def test_without_time_it_is_unknown(monkeypatch):
    monkeypatch.setattr(core_distance, "LIMIT_S", -1.0)
    assert Cores(core_pair()).round_trip_ns() is None


@needs_two_cores
def test_the_partner_says_and_runs_nothing_of_the_program_it_is_a_copy_of():
    program = "\n".join(
        [
            "import atexit, sys",
            "from infsa_deploy.bench.core_distance import Cores, core_pair",
            "atexit.register(print, 'the end')",
            "sys.stdout.write('kept back ')",
            "Cores(core_pair()).round_trip_ns()",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("kept back the end\n", "")
