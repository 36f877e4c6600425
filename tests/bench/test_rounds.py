"""Taking turns: order, number of rounds, memory, and contenders that end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infsa_deploy.bench import rounds as rounds_module
from infsa_deploy.bench.contenders import Contender
from infsa_deploy.bench.prepare import Entry
from infsa_deploy.bench.process import Opened, OpenRequest, PointEnded, Sampled
from infsa_deploy.bench.rounds import Rounds, round_count
from infsa_deploy.config import ModelSource
from infsa_deploy.records.bench import FAILED, OUT_OF_MEMORY, EnergySource, Settings

NO_ENERGY = EnergySource(None, None, None, "no counter")


class Machine:
    """Stands in for memory and for processes, and writes down who does what."""

    def __init__(self, memory: int = 1000, peak: int = 10, call_s: float = 0.1, ends: dict[str, str] | None = None):
        self.memory, self.peak, self.call_s, self.ends = memory, peak, call_s, ends or {}
        self.log: list[str] = []
        self.loaded: list[Child] = []
        self.limits: list[int | None] = []

    def usable_bytes(self) -> int:
        return self.memory - self.peak * len(self.loaded)

    def said(self, verb: str) -> str:
        return "".join(line.removeprefix(f"{verb} ") for line in self.log if line.startswith(verb))


class Child:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._name = machine, ""

    def ask(self, job, request):
        machine, name = self._machine, job.__name__
        if name == "open":
            self._name = request.contender.name
            machine.limits.append(request.limit_bytes)
            machine.loaded.append(self)
        machine.log.append(f"{name} {self._name}")
        if machine.ends.get(self._name) == f"{name} {machine.said(name).count(self._name)}":
            raise PointEnded(FAILED, "it broke")
        if name == "open":
            return Opened("eager", 3, True, machine.call_s, (1.0,), machine.peak)
        return Sampled((5.0,), machine.peak) if name == "sample" else "energy"

    def close(self) -> None:
        if self in self._machine.loaded:
            self._machine.loaded.remove(self)


@pytest.fixture
def run(monkeypatch):
    def measure(machine: Machine, names: str, need: int = 10, source: EnergySource = NO_ENERGY, **settings):
        monkeypatch.setattr(rounds_module, "Child", lambda settings: Child(machine))
        monkeypatch.setattr(rounds_module, "usable_bytes", machine.usable_bytes)
        monkeypatch.setattr(rounds_module, "SETTLE_S", 0.0)
        entries = []
        for name in names:
            contender = Contender(name, "", "eager")
            opening = OpenRequest(contender, ModelSource(), None, 1, (3, 16, 16))
            entries.append(Entry(contender, need_bytes=need, opening=opening))
        wanted = replace(Settings(threads=1, budget_s=0.0, fewest_rounds=3), **settings)
        rounds = Rounds(entries, wanted, lambda phase: None)
        rounds.run(source)
        assert not machine.loaded
        return entries, rounds

    return measure


@pytest.mark.parametrize(("cost_s", "count"), [(100.0, 6), (30.1, 6), (20.0, 9), (18.0, 10), (1.0, 30), (0.0, 6)])
def test_rounds_follow_from_a_budget(cost_s, count):
    assert round_count(Settings(threads=1, budget_s=180.0), cost_s) == count


def test_the_cost_of_a_round_is_that_of_its_turns(run):
    """Two contenders whose call takes 4 s, and turns of a second: a round of 8 s."""
    _, rounds = run(Machine(call_s=4.0), "ab", budget_s=80.0, turn_s=1.0)
    assert rounds.count == 10
    _, rounds = run(Machine(call_s=0.1), "ab", budget_s=80.0, turn_s=5.0)
    assert rounds.count == 8


def test_each_round_has_everyone_once_in_an_order_of_its_own(run):
    machine = Machine()
    entries, _ = run(machine, "abcd", fewest_rounds=20)
    turns = machine.said("sample")
    rounds = [turns[at : at + 4] for at in range(0, 80, 4)]
    assert all(sorted(found) == list("abcd") for found in rounds)
    assert len(set(rounds)) > 5
    assert all(len(entry.rounds_ms) == 20 for entry in entries)
    again, other = Machine(), Machine()
    run(again, "abcd", fewest_rounds=20)
    run(other, "abcd", fewest_rounds=20, seed=1)
    assert again.said("sample") == turns != other.said("sample")


def test_all_stay_loaded_where_a_fifth_of_the_memory_is_spared(run):
    machine = Machine(memory=38)
    _, rounds = run(machine, "abc")
    assert (machine.said("open"), rounds.remarks) == ("abc", ())


@pytest.mark.parametrize(("need", "peak"), [(10, 10), (1, 10), (10, 1)])
def test_otherwise_they_are_loaded_one_at_a_time_and_that_is_said(need, peak, run):
    machine = Machine(memory=37, peak=peak)
    _, rounds = run(machine, "abc", need=need)
    assert len(machine.said("open")) == 3 + 9
    remark = "contenders were loaded one at a time: together they need 30 B, and 37 B are free"
    assert rounds.remarks == (remark,)


def test_loading_again_is_part_of_the_cost(run, monkeypatch):
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(rounds_module.time, "monotonic", lambda: next(clock))
    _, rounds = run(Machine(memory=25), "abc", budget_s=230.0, turn_s=0.5)
    assert rounds.count == 10  # a round takes three times 7 s and 0.5 s


def test_one_that_ends_before_it_is_warm_leaves_the_others_alone(run):
    machine = Machine(ends={"b": "open 1"})
    entries, _ = run(machine, "abc")
    assert (entries[1].ended.status, entries[1].rounds_ms) == (FAILED, [])
    assert sorted(machine.said("sample")) == list("aaaccc")


def test_one_that_ends_late_keeps_its_earlier_turns(run):
    entries, _ = run(Machine(ends={"b": "sample 3"}), "abc", fewest_rounds=5)
    assert [len(entry.rounds_ms) for entry in entries] == [5, 2, 5]
    assert entries[1].ended.reason == "it broke"


def test_one_that_fits_nowhere_is_out_of_memory_with_the_numbers(run):
    entries, _ = run(Machine(memory=5_000_000_000), "a", need=9_000_000_000)
    assert (entries[0].ended.status, entries[0].rounds_ms) == (OUT_OF_MEMORY, [])
    assert entries[0].ended.reason == "it needs 9 GB, and 5 GB are free now"


def test_a_child_may_not_take_more_than_what_is_free(run):
    machine = Machine(memory=1000)
    run(machine, "ab")
    assert machine.limits == [1000, 990]


def test_a_gpu_has_memory_of_its_own(run):
    machine = Machine(memory=25)
    _, rounds = run(machine, "abc", device="cuda")
    assert (machine.said("open"), rounds.remarks, set(machine.limits)) == ("abc", (), {None})


def test_energy_is_measured_last_or_has_a_reason(run):
    counter = EnergySource("counter", 0.1, 50.0, None)
    entries, _ = run(Machine(ends={"b": "measure_energy 1"}), "ab", source=counter)
    assert [(entry.energy, entry.energy_reason) for entry in entries] == [("energy", None), (None, "it broke")]
    assert [entry.ended for entry in entries] == [None, None]  # the latencies stand
    entries, _ = run(Machine(), "a")
    assert entries[0].energy_reason == "no counter"
