"""Taking turns: order, memory, and contenders that end."""

from __future__ import annotations

import pytest

from infsa_deploy.bench import field
from infsa_deploy.bench.child import PointEnded
from infsa_deploy.bench.contenders import Contender
from infsa_deploy.bench.field import Entry, Field
from infsa_deploy.measurements import OUT_OF_MEMORY, EnergySource, Settings

NO_ENERGY = EnergySource(None, None, None, "no counter")


class Machine:
    """Stands in for memory and for processes, and writes down who does what."""

    def __init__(self, memory: int, peak: int, call_s: float = 0.1, **peaks: int) -> None:
        self.memory, self.peak, self.call_s, self.peaks = memory, peak, call_s, peaks
        self.log: list[str] = []
        self.loaded: list[Child] = []
        self.limits: list[int] = []

    def available_bytes(self) -> int:
        return self.memory - sum(child.resident_bytes for child in self.loaded)

    def child(self, threads: int, limit_s: float) -> Child:
        return Child(self)

    def opened(self) -> list[str]:
        return [line.removeprefix("open ") for line in self.log if line.startswith("open")]


class Child:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._name, self.resident_bytes = machine, "", machine.peak
        machine.loaded.append(self)

    def ask(self, do: str, **arguments):
        if do == "open":
            self._machine.limits.append(arguments["limit"])
            self._name = arguments["opening"]["name"]
            self.resident_bytes = self._machine.peaks.get(self._name, self._machine.peak)
            if self._name == "breaks":
                raise PointEnded(OUT_OF_MEMORY, "an allocation failed")
        self._machine.log.append(f"{do} {self._name}")
        call_s = 60.0 if self._name == "slow" else self._machine.call_s
        answers = {
            "open": "eager",
            "warm up": {"calls": 3, "stable": True, "call_s": call_s, "logits": [1.0]},
            "turn": {"times_ms": [self._turn_ms()], "peak_bytes": self.resident_bytes},
        }
        return answers[do]

    def _turn_ms(self) -> float:
        turns = self._machine.log.count(f"turn {self._name}")
        return 5.0 + turns % 2 if self._name == "unsteady" else 5.0

    def close(self) -> None:
        self._machine.loaded.remove(self)
        self._machine.log.append(f"close {self._name}")


class NearCores:
    def __init__(self, pair: tuple[int, int] | None) -> None:
        self.round_trip_ns = self.gathered_round_trip_ns = lambda: 100.0


@pytest.fixture
def run(monkeypatch):
    def measure(machine: Machine, names: str, rounds: int = 3, need: int = 10, most: int | None = None):
        monkeypatch.setattr(field, "Child", machine.child)
        monkeypatch.setattr(field, "available_bytes", machine.available_bytes)
        monkeypatch.setattr(field, "SETTLE_S", 0.0)
        monkeypatch.setattr(field, "Cores", NearCores)
        entries = [Entry(Contender(name, "", "eager"), {"name": name}, 1, [], need) for name in names.split()]
        settings = Settings(threads=1, rounds=rounds, most_rounds=most or rounds)
        Field(entries, settings, lambda phase: None).run(NO_ENERGY)
        return entries, [line.removeprefix("turn ") for line in machine.log if line.startswith("turn")]

    return measure


def test_rounds_start_with_another_contender_each(run):
    machine = Machine(memory=1000, peak=10)
    entries, turns = run(machine, "a b c")
    assert "".join(turns) == "abc" + "bca" + "cab"
    assert all(len(entry.turns) == 3 for entry in entries)
    assert machine.opened() == ["a", "b", "c"]
    assert not machine.loaded


@pytest.mark.parametrize(("largest", "opened"), [(30, "abc"), (40, "abcbcb")])
def test_some_memory_is_spared_by_closing_those_that_hold_most(largest, opened, run, monkeypatch):
    monkeypatch.setattr(field, "SPARE", 0.5)
    machine = Machine(memory=100, peak=10, b=largest)
    _, turns = run(machine, "a b c")
    assert "".join(turns) == "abcbcacab"
    assert "".join(machine.opened()) == opened


def test_without_room_for_all_processes_are_closed_and_opened_again(run):
    machine = Machine(memory=25, peak=10)
    entries, turns = run(machine, "a b c")
    assert "".join(turns) == "abcbcacab"
    assert len(machine.opened()) > 3
    first = dict(zip(reversed(machine.opened()), reversed(machine.limits), strict=True))
    assert machine.limits == [first[name] for name in machine.opened()]
    assert all(entry.ended is None for entry in entries)
    assert not machine.loaded


def test_one_that_ends_leaves_the_others_alone(run):
    entries, turns = run(Machine(memory=1000, peak=10), "a breaks c")
    assert entries[1].ended is not None
    assert entries[1].ended.status == OUT_OF_MEMORY
    assert "".join(turns) == "ac" + "ca" + "ca"


def test_one_that_fits_nowhere_is_out_of_memory_with_the_numbers(run):
    entries, turns = run(Machine(memory=5_000_000_000, peak=10), "a", need=9_000_000_000)
    assert turns == []
    assert entries[0].ended is not None
    assert entries[0].ended.reason == "it needs 9 GB, and 5 GB are free now"


@pytest.mark.parametrize(("call_s", "rounds"), [(3.0, 12), (5.0, 12), (60.0, 4)])
def test_slow_contenders_have_fewer_rounds(call_s, rounds, run):
    entries, _ = run(Machine(memory=1000, peak=10, call_s=call_s), "a b", rounds=12)
    assert [len(entry.turns) for entry in entries] == [rounds, rounds]


def test_the_first_call_of_a_very_slow_one_counts(run):
    entries, turns = run(Machine(memory=1000, peak=10), "slow b")
    assert entries[0].turns == [[60000.0], [5.0], [5.0]]
    assert entries[0].core_round_trips_ns == [100.0] * 3
    assert [entry.warm_up["calls"] for entry in entries] == [0, 3]
    assert turns.count("slow") == 2


def test_turns_of_a_very_slow_one_are_spread(run):
    entries, turns = run(Machine(memory=1000, peak=10), "a slow", rounds=8)
    assert " ".join(turns) == "a a a slow a a slow a a slow a"  # the first call was its turn in the first round
    assert entries[1].turn_every == 2
    assert entries[1].speedups_to(entries[0]) == [5 / 60_000, 1.0, 1.0, 1.0]


def test_one_that_has_had_its_rounds_waits_no_longer(run):
    machine = Machine(memory=1000, peak=10)
    run(machine, "slow b", rounds=8)
    assert machine.log[-3:] == ["close slow", "turn b", "close b"]


@pytest.mark.parametrize(
    ("names", "rounds"),
    [
        ("steady other", [7, 7]),
        ("steady unsteady other", [20, 20, 7]),
        ("unsteady steady", [20, 20]),
        ("slow steady unsteady", [4, 7, 7]),  # no pairs come any more from a reference that has had its turns
        ("breaks steady unsteady", [0, 20, 20]),
        ("steady", [7]),
    ],
)
def test_turns_go_on_until_the_ratio_to_the_reference_is_known(names, rounds, run):
    entries, _ = run(Machine(memory=1000, peak=10), names, rounds=7, most=20)
    assert [len(entry.turns) for entry in entries] == rounds


def test_no_energy_counter_is_a_reason(run):
    entries, _ = run(Machine(memory=1000, peak=10), "a")
    assert entries[0].energy_reason == "no counter"
