"""How far apart two cores are: a virtual machine's may move between processors that share a cache and others."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from infsa_deploy.bench.memory import die_with_parent

APART = 1.4  # times the shortest trip between cores; seen were 180 to 220 ns with a shared cache, 290 to 380 without
BATCHES, TRIPS = 30, 20
LIMIT_S = 0.05  # where another process holds one of the cores, a trip takes as long as the kernel lets it
BALL, READY = 0, 1  # bytes of the shared page
GATHERING_S, MOST_GATHERINGS = 0.1, 10


def together(round_trip_ns: float | None, nearest_ns: float) -> bool:
    """Whether cores are about as near as they can be; not where that is unknown."""
    return round_trip_ns is not None and round_trip_ns <= APART * nearest_ns


def core_pair() -> tuple[int, int] | None:
    """The first and the last core that this process may use; None where it has one only, or cannot be bound to any."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (cores[0], cores[-1]) if len(cores) > 1 else None


class Cores:
    """A pair of cores, and how near to each other they have been.

    A host puts virtual cores that wake each other side by side, so that is done to gather them: where they had moved
    apart, they were together within 0.2 s of it 17 times of 20, and by themselves twice of 14 times.
    """

    def __init__(self, pair: tuple[int, int] | None) -> None:
        """Takes a second, to find how near they can be; nothing is done, and nothing known, without a pair."""
        self._pair = pair
        self._nearest_ns = float("inf")
        for _ in range(MOST_GATHERINGS if pair else 0):
            self._gather()
            self.round_trip_ns()

    def round_trip_ns(self) -> float | None:
        """Time in ns that a cache line takes from core to core and back, Python's loop included.

        The least of some batches; None without a pair, or where others keep one of them busy.
        """
        found = _round_trip_ns(*self._pair) if self._pair else None
        if found is not None:
            self._nearest_ns = min(self._nearest_ns, found)
        return found

    def gathered_round_trip_ns(self) -> float | None:
        """The same after the cores were brought together, or what a second could do for it."""
        found = self.round_trip_ns()
        for _ in range(MOST_GATHERINGS):
            if found is None or together(found, self._nearest_ns):
                break
            self._gather()
            found = self.round_trip_ns()
        return found

    def _gather(self) -> None:
        assert self._pair
        _wake_each_other(*self._pair)


@contextmanager
def _partner(first: int, last: int, work: Callable[[], None]) -> Iterator[None]:
    """This process bound to the first core, and a copy of it that does `work` on the last until it is killed."""
    cores = os.sched_getaffinity(0)
    partner = os.fork()
    if partner == 0:
        try:  # and never return into the program that this is a copy of
            die_with_parent()
            os.sched_setaffinity(0, {last})
            work()
        finally:
            os._exit(0)
    try:
        os.sched_setaffinity(0, {first})
        yield
    finally:
        os.kill(partner, signal.SIGKILL)
        os.waitpid(partner, 0)
        os.sched_setaffinity(0, cores)


def _wake_each_other(first: int, last: int) -> None:
    """A byte goes to and fro between two processes, each of which sleeps until it has it."""
    mine, theirs = socket.socketpair()

    def answer() -> None:
        mine.close()
        while byte := theirs.recv(1):
            theirs.send(byte)

    with mine, theirs, _partner(first, last, answer), suppress(ConnectionError):
        theirs.close()
        deadline = time.monotonic() + GATHERING_S
        mine.send(b".")
        while time.monotonic() < deadline and (byte := mine.recv(1)):
            mine.send(byte)


def _round_trip_ns(first: int, last: int) -> float | None:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:

        def return_the_ball() -> None:
            page[READY] = 1
            while True:
                while not page[BALL]:
                    pass
                page[BALL] = 0

        with _partner(first, last, return_the_ball):
            return _least_trip_ns(page)


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
