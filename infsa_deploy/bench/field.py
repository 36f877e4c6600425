"""Contenders of one cell in their processes, taking turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from infsa_deploy.bench.child import Child, PointEnded
from infsa_deploy.bench.contenders import Contender
from infsa_deploy.bench.core_distance import Cores, core_pair
from infsa_deploy.bench.memory import available_bytes
from infsa_deploy.bench.statistics import median_known, ratios, summarise
from infsa_deploy.measurements import OUT_OF_MEMORY, EnergySource, Latency, Settings, Work
from infsa_deploy.sizes import format_bytes

SETTLE_S = 0.1  # idle threads of the one before spin for a while after its last call
# Of the memory free at first, beyond what runs. With less, the kernel looks for pages meanwhile: a pure eager model at
# 1024, which asks for 20 GiB of them a call, took 17 s where less was free than it needs, and 13 s with 1 GiB to spare.
SPARE = 0.1
VERY_SLOW = 4  # times a slow call: what a first call does once is lost in it, so it counts
VERY_SLOW_TURNS = 4


@dataclass
class Entry:
    """A contender in a cell: what it needs, and what has been measured of it so far."""

    contender: Contender
    opening: dict[str, Any]
    batch: int
    image: list[int]
    need_bytes: int
    work: Work | None = None
    sha256: str | None = None
    runtime: str = ""
    turns: list[list[float]] = field(default_factory=list)
    turn_every: int = 1
    core_round_trips_ns: list[float | None] = field(default_factory=list)
    warm_up: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    energy: dict[str, Any] | None = None
    energy_reason: str | None = None
    ended: PointEnded | None = None
    child: Child | None = None
    done: bool = False

    @property
    def running_bytes(self) -> int:
        """What it takes while it runs: measured, or before that predicted."""
        return self.peak_bytes or self.need_bytes

    @property
    def takes_turns(self) -> bool:
        """Whether more of it is to be measured."""
        return not self.done and not self.ended

    @property
    def latency(self) -> Latency:
        """Of all turns so far, one at least."""
        warm_up = (self.warm_up["calls"], self.warm_up["stable"])
        return summarise(self.turns, self.batch, *warm_up, self.turn_every, self.core_round_trips_ns)

    def speedups_to(self, reference: Entry) -> list[float]:
        """The reference's time over this one's, of each span of rounds that has a turn of both and counts."""
        return ratios(reference.latency, self.latency)


class Field:
    """Runs entries in rounds. A process stays loaded between its turns as long as memory can be spared.

    Each round starts with another contender, so that nobody always runs after the same one. One whose ratio to the
    reference, the first that has not ended, is known well enough takes no more turns; the reference goes on with the
    rest.
    """

    def __init__(self, entries: list[Entry], settings: Settings, progress: Callable[[str], None]) -> None:
        self._entries, self._settings, self._progress = entries, settings, progress
        self._spare_bytes = SPARE * (available_bytes() or 0)
        self._cores = Cores(core_pair() if settings.device == "cpu" else None)  # of no matter where a GPU computes

    def run(self, source: EnergySource) -> None:
        """Measure every entry that has not ended; each then has its figures, or how it ended."""
        try:
            for number in range(self._settings.most_rounds):
                if not any(entry.takes_turns for entry in self._entries):
                    break
                start = number % len(self._entries)
                for entry in self._entries[start:] + self._entries[:start]:
                    if entry.takes_turns and number % entry.turn_every == 0:
                        self._attempt(entry, f"round {number + 1}", self._turn)
                self._retire(source)
            for entry in self._entries:
                self._attempt(entry, "energy", partial(self._measure_energy, source))
        finally:
            for entry in self._entries:
                self._close(entry)

    def _attempt(self, entry: Entry, phase: str, step: Callable[[Entry], None]) -> None:
        if entry.ended:
            return
        self._progress(f"{entry.contender.name}: {phase}")
        try:
            step(entry)
        except PointEnded as ended:
            entry.ended = ended
            self._close(entry)

    def _turn(self, entry: Entry) -> None:
        child = self._open(entry)
        if not entry.turns and self._very_slow(entry):
            entry.turns.append([1000 * entry.warm_up["call_s"]])
            entry.warm_up["calls"] = 0
            entry.turn_every = -(-self._settings.rounds // VERY_SLOW_TURNS)
            entry.core_round_trips_ns.append(self._cores.round_trip_ns())
            return
        time.sleep(SETTLE_S)
        before = self._cores.gathered_round_trip_ns()
        found = child.ask("turn", seconds=self._settings.turn_s)
        entry.core_round_trips_ns.append(_longer(before, self._cores.round_trip_ns()))
        entry.turns.append(found["times_ms"])
        if found["peak_bytes"]:
            entry.peak_bytes = max(entry.peak_bytes or 0, found["peak_bytes"])

    def _retire(self, source: EnergySource) -> None:
        """Find who needs no more turns; their processes are closed, unless energy is still to be measured."""
        running = [entry for entry in self._entries if not entry.ended]
        if not running:
            return
        reference, *others = running
        fewest, most = self._turns(reference)
        reference.done = reference.done or len(reference.turns) >= most
        for entry in others:
            entry.done = entry.done or self._has_enough(entry, reference)
        if all(entry.done for entry in others):
            reference.done = reference.done or len(reference.turns) >= fewest
        for entry in running:
            if entry.done and source.counter is None:
                self._close(entry)

    def _has_enough(self, entry: Entry, reference: Entry) -> bool:
        """Whether it has had all its turns, or enough for its ratio to `reference`."""
        fewest, most = self._turns(entry)
        taken = len(entry.turns)
        if taken < fewest:
            return False
        known = median_known(entry.speedups_to(reference), self._settings.precision)
        return known or reference.done or taken >= most

    def _turns(self, entry: Entry) -> tuple[int, int]:
        """How many it has, at least and at most."""
        settings = self._settings
        fewest = -(-settings.rounds // entry.turn_every)
        return fewest, fewest if entry.warm_up["call_s"] > settings.slow_call_s else settings.most_rounds

    def _very_slow(self, entry: Entry) -> bool:
        return bool(entry.warm_up["call_s"] > VERY_SLOW * self._settings.slow_call_s)

    def _measure_energy(self, source: EnergySource, entry: Entry) -> None:
        if not self._settings.energy or source.counter is None:
            entry.energy_reason = source.reason or "energy was not asked for"
            return
        try:
            child = self._open(entry)
            entry.energy = child.ask("measure energy", source=asdict(source), device=self._settings.device)
        except PointEnded as ended:  # the latencies stand
            entry.energy_reason = ended.reason
            self._close(entry)

    def _open(self, entry: Entry) -> Child:
        """The entry's process, loaded and warm, with memory to spare for its next call."""
        limit = self._make_room(entry)
        if entry.child:
            return entry.child
        entry.limit_bytes = entry.limit_bytes or limit  # of address space: room was made for what it then took of it
        entry.child = child = Child(self._settings.threads, self._settings.limit_s)
        entry.runtime = child.ask(
            "open",
            opening=entry.opening,
            runtime=entry.contender.runtime,
            batch=entry.batch,
            image=entry.image,
            limit=entry.limit_bytes if entry.contender.runtime != "tensorrt" else None,
        )
        slow_call_s = self._settings.slow_call_s
        warm_up = child.ask("warm up", most_calls=self._settings.warm_up_calls, slow_call_s=slow_call_s)
        entry.warm_up = entry.warm_up or warm_up
        return child

    def _make_room(self, entry: Entry) -> int | None:
        """Close others, the largest first, until this one leaves the spare memory alone; returns what is free."""
        if self._settings.device != "cpu":
            return None
        still_to_take = entry.running_bytes - (entry.child.resident_bytes if entry.child else 0)
        others = [(other.child.resident_bytes, other) for other in self._entries if other.child and other is not entry]
        others.sort(key=itemgetter(0))
        while (free := available_bytes()) is not None and free - still_to_take < self._spare_bytes and others:
            self._close(others.pop()[1])
        if free is not None and entry.child is None and free < entry.need_bytes:
            reason = f"it needs {format_bytes(entry.need_bytes)}, and {format_bytes(free)} are free now"
            raise PointEnded(OUT_OF_MEMORY, reason)
        return free

    def _close(self, entry: Entry) -> None:
        if entry.child:
            entry.child.close()
            entry.child = None


def _longer(before: float | None, after: float | None) -> float | None:
    return max(before, after) if before is not None and after is not None else None
