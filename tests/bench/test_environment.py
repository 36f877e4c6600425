"""The machine's counters, on files with known contents."""

from __future__ import annotations

import pytest

from infsa_deploy.bench import environment


@pytest.fixture
def stat(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "STAT", tmp_path / "stat")
    return tmp_path / "stat"


def test_what_the_hypervisor_took(stat):
    stat.write_text("cpu 100 0 50 800 0 0 0 50 7 7\ncpu0 0\n")
    before = environment.cpu_ticks()
    stat.write_text("cpu 150 0 70 920 0 0 0 60 9 9\ncpu0 0\n")
    share, reason = environment.steal_share(before, environment.cpu_ticks())
    assert share == pytest.approx(10 / 200)  # guest time, the last two, is in user already
    assert reason is None


@pytest.mark.parametrize("content", [None, "", "cpu 1 2\n", "cpu a b c d e f g h\n"])
def test_no_counters_are_a_reason(content, stat):
    if content is not None:
        stat.write_text(content)
    share, reason = environment.steal_share(environment.cpu_ticks(), environment.cpu_ticks())
    assert share is None
    assert "has no CPU counters" in reason


def test_counters_that_stand_still_are_a_reason():
    assert environment.steal_share((1,) * 8, (1,) * 8) == (None, f"the CPU counters of {environment.STAT} do not move")


def test_the_clock_governor_is_read_or_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "GOVERNOR", tmp_path / "governor")
    assert environment.governor() is None
    (tmp_path / "governor").write_text("performance\n")
    assert environment.governor() == "performance"


def test_this_machine_has_what_every_machine_has():
    machine = environment.this_machine()
    assert machine.processor
    assert machine.cores > 0
    assert machine.memory_bytes > 0
    assert "torch" in machine.packages
    assert "nobody" not in machine.packages
