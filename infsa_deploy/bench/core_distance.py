"""How far apart two cores are: a virtual machine's may move between processors that share a cache and others."""

from __future__ import annotations

import mmap
import os
import signal
import time

from infsa_deploy.bench.memory import die_with_parent

BATCHES, TRIPS = 30, 20
LIMIT_S = 0.05  # where another process holds one of the cores, a trip takes as long as the kernel lets it
BALL, READY = 0, 1  # bytes of the shared page


def core_round_trip_ns() -> float | None:
    """Time in ns that a cache line takes to another core and back, Python's loop included; the least of some batches.

    Of the first and the last core that this process may use. None where there is one only, where the system cannot
    say which, or where others keep them busy.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        return None
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        partner = os.fork()
        if partner == 0:
            _return_the_ball(page, cores[-1])
        try:
            os.sched_setaffinity(0, {cores[0]})
            return _least_trip_ns(page)
        finally:
            os.kill(partner, signal.SIGKILL)
            os.waitpid(partner, 0)
            os.sched_setaffinity(0, cores)


def _return_the_ball(page: mmap.mmap, core: int) -> None:
    """What the partner does until it is killed; never returns into the program that it is a copy of."""
    try:
        die_with_parent()
        os.sched_setaffinity(0, {core})
        page[READY] = 1
        while True:
            while not page[BALL]:
                pass
            page[BALL] = 0
    finally:
        os._exit(0)


def _least_trip_ns(page: mmap.mmap) -> float | None:
    deadline = time.monotonic() + LIMIT_S
    while not page[READY]:
        if time.monotonic() > deadline:
            return None
    batches: list[float] = []
    while len(batches) < BATCHES and time.monotonic() < deadline:
        start = time.perf_counter_ns()
        for _ in range(TRIPS):
            page[BALL] = 1
            while page[BALL]:
                pass
        batches.append((time.perf_counter_ns() - start) / TRIPS)
    return min(batches[:-1], default=None)  # the last may have been held up past the deadline
