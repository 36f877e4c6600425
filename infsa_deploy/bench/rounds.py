"""Rounds of turns: every contender in a process of its own, in a new order each round."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from infsa_deploy.bench.environment import usable_bytes
from infsa_deploy.bench.prepare import Entry
from infsa_deploy.bench.process import Child, PointEnded
from infsa_deploy.bench.worker import Worker
from infsa_deploy.files import format_bytes
from infsa_deploy.records.bench import OUT_OF_MEMORY, EnergySource, Settings

SETTLE_S = 0.1  # idle threads of the one before spin for a while after its last call
SHARE = 0.8  # of the free memory: with less to spare, the kernel looks for pages while calls are timed


class Rounds:
    """Measures contenders that take turns. All stay loaded where they fit, else only the one whose turn it is.

    `count` is the number of rounds, fixed before the first; `remarks` is what readers of the figures must know.
    """

    def __init__(self, entries: Sequence[Entry], settings: Settings, progress: Callable[[str], None]) -> None:
        self._entries, self._settings, self._progress = entries, settings, progress
        self._children: dict[str, Child] = {}  # that are loaded, by contender
        self._opening_s: dict[str, float] = {}
        self._together = True
        self._free = usable_bytes() if settings.device == "cpu" else None
        self.count = 0
        self.remarks: tuple[str, ...] = ()

    def run(self, source: EnergySource) -> None:
        """Warm the contenders up, fix the number of rounds, take the turns, and measure energy."""
        try:
            self._each("warming up", self._warm_up)
            running = [entry for entry in self._entries if not entry.ended]
            self.count = round_count(self._settings, sum(map(self._turn_s, running)))
            if not self._together:
                numbers = (
                    f"{format_bytes(sum(map(running_bytes, running)))}, and {format_bytes(self._free or 0)} are free"
                )
                self.remarks = (f"contenders were loaded one at a time: together they need {numbers}",)
            order = random.Random(self._settings.seed)
            for number in range(self.count):
                self._each(f"round {number + 1} of {self.count}", self._turn, order)
            self._each("energy", partial(self._measure_energy, source))
        finally:
            self._close(*self._entries)

    def _each(self, phase: str, step: Callable[[Entry], None], order: random.Random | None = None) -> None:
        """Do a step with every contender that has not ended, in their order or in a random one."""
        for entry in order.sample(self._entries, len(self._entries)) if order else self._entries:
            if entry.ended:
                continue
            self._progress(f"{entry.contender.name}: {phase}")
            try:
                step(entry)
            except PointEnded as ended:  # the turns before it stand
                entry.ended = ended
            if entry.ended or not self._together:
                self._close(entry)

    def _warm_up(self, entry: Entry) -> None:
        self._make_room(entry)
        start = time.monotonic()
        self._open(entry)
        self._opening_s[entry.contender.name] = time.monotonic() - start
        self._make_room(entry)

    def _make_room(self, entry: Entry) -> None:
        """Where this one and those that are loaded leave too little memory, load one at a time from now on."""
        loaded = [e for e in self._entries if e.contender.name in self._children and e is not entry]
        if self._free is not None and loaded and sum(map(running_bytes, [*loaded, entry])) > SHARE * self._free:
            self._together = False
            self._close(*loaded)

    def _turn_s(self, entry: Entry) -> float:
        """Seconds that a turn will take."""
        assert entry.opened
        opening_s = 0.0 if self._together else self._opening_s[entry.contender.name]
        return opening_s + SETTLE_S + max(self._settings.turn_s, entry.opened.call_s)

    def _turn(self, entry: Entry) -> None:
        child = self._open(entry)
        time.sleep(SETTLE_S)
        sampled = child.ask(Worker.sample, self._settings.turn_s)
        entry.rounds_ms.append(sampled.times_ms)
        entry.peak_bytes = max(entry.peak_bytes or 0, sampled.peak_bytes or 0) or None

    def _open(self, entry: Entry) -> Child:
        """The contender's process, loaded and warm."""
        name, free = entry.contender.name, usable_bytes() if self._settings.device == "cpu" else None
        if name in self._children:
            return self._children[name]
        if free is not None and free < entry.need_bytes:
            reason = f"it needs {format_bytes(entry.need_bytes)}, and {format_bytes(free)} are free now"
            raise PointEnded(OUT_OF_MEMORY, reason)
        assert entry.opening
        child = self._children[name] = Child(self._settings)
        limit = None if entry.contender.runtime == "tensorrt" else free
        opened = child.ask(Worker.open, replace(entry.opening, limit_bytes=limit))
        entry.opened = entry.opened or opened
        return child

    def _measure_energy(self, source: EnergySource, entry: Entry) -> None:
        entry.energy_reason = source.reason
        if source.counter is not None:
            try:
                entry.energy = self._open(entry).ask(Worker.measure_energy, source)
            except PointEnded as ended:  # the latencies stand
                entry.energy_reason = ended.reason

    def _close(self, *entries: Entry) -> None:
        for entry in entries:
            if child := self._children.pop(entry.contender.name, None):
                child.close()


def round_count(settings: Settings, cost_s: float) -> int:
    """Compute how many rounds of that cost fit into the budget, within the limits of the settings."""
    affordable = int(settings.budget_s / cost_s) if cost_s else 0
    return max(settings.fewest_rounds, min(settings.most_rounds, affordable))


def running_bytes(entry: Entry) -> int:
    """What a contender takes while it runs: measured, or before that predicted."""
    return max(entry.need_bytes, (entry.opened.peak_bytes or 0) if entry.opened else 0)
