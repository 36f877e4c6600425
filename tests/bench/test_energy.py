"""Energy from a replayed counter with known answers: its steps, its wraps, and what is refused."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from infsa_deploy.bench import energy
from infsa_deploy.bench.energy import WINDOW_STEPS, difference, find_step, idle_power, look_for_energy, measure
from infsa_deploy.errors import HostError
from infsa_deploy.records.bench import EnergySource

IDLE_W, LOAD_W, CALL_S, IMAGES = 55.0, 250.0, 0.037, 4


class Replay:
    """A device that draws IDLE_W, or LOAD_W during a call, and a counter that moves every `step_s` only."""

    name = "replayed counter"

    def __init__(self, step_s: float, start_j: float = 1e6) -> None:
        self._step_s, self._start_j = step_s, start_j
        self._history = [(0.0, 0.0)]

    def read_j(self) -> float:
        now = self._history[-1][0]
        moment = now // self._step_s * self._step_s
        for (t0, j0), (t1, j1) in itertools.pairwise(self._history):
            if t0 <= moment <= t1 and t1 > t0:
                return self._start_j + j0 + (j1 - j0) * (moment - t0) / (t1 - t0)
        return self._start_j

    def settings(self) -> tuple[int | None, float | None]:
        return 1410, 400.0

    def spend(self, seconds: float, watts: float) -> None:
        time, joules = self._history[-1]
        self._history.append((time + seconds, joules + seconds * watts))

    def call(self) -> None:
        self.spend(CALL_S, LOAD_W)

    @property
    def clock(self) -> SimpleNamespace:
        """The module time, where only this device makes it pass."""
        now, sleep = lambda: self._history[-1][0], lambda seconds: self.spend(seconds, IDLE_W)
        return SimpleNamespace(perf_counter=now, sleep=sleep)


@pytest.mark.parametrize("step_s", [0.02, 0.1, 0.3])
def test_known_power_is_found_through_steps(step_s):
    """Each end of a window is off by less than a step, so its energy is within 1/WINDOW_STEPS."""
    device = Replay(step_s)
    found_step = find_step(device, device.clock)
    assert step_s - 0.0021 <= found_step <= step_s + 0.0021  # polled each millisecond
    idle_w = idle_power(device, found_step, device.clock)
    assert idle_w == pytest.approx(IDLE_W, rel=1 / WINDOW_STEPS)
    found = measure(device, EnergySource("replay", found_step, idle_w, None), device.call, IMAGES, device.clock)
    assert found.gross_j_per_image == pytest.approx(LOAD_W * CALL_S / IMAGES, rel=1.1 / WINDOW_STEPS)
    net = (LOAD_W - IDLE_W) * CALL_S / IMAGES
    assert found.net_j_per_image == pytest.approx(net, abs=(LOAD_W + IDLE_W) * CALL_S / IMAGES * 1.1 / WINDOW_STEPS)
    assert found.images_per_s == pytest.approx(IMAGES / CALL_S)
    assert found.window_s >= WINDOW_STEPS * found_step
    assert found.windows == energy.WINDOWS
    assert found.cv <= 2 / WINDOW_STEPS
    assert (found.sm_clock_mhz, found.power_limit_w) == (1410, 400.0)


def test_a_window_shorter_than_the_counter_resolves_is_refused():
    with pytest.raises(HostError) as caught:
        difference(0.0, 10.0, seconds=0.09, step_s=0.1)
    assert "0.09 s" in caught.value.why
    assert difference(0.0, 10.0, seconds=WINDOW_STEPS * 0.1, step_s=0.1) == 10.0


def test_a_counter_that_runs_backwards_is_refused():
    with pytest.raises(HostError) as caught:
        difference(100.0, 1.0, seconds=60.0, step_s=0.1)
    assert "backwards" in caught.value.why


def test_a_counter_that_stands_still_is_refused():
    device = Replay(step_s=1e9)
    with pytest.raises(HostError) as caught:
        find_step(device, device.clock)
    assert "did not move" in caught.value.why


def test_without_idle_power_there_is_no_figure():
    device = Replay(0.1)
    with pytest.raises(HostError) as caught:
        measure(device, EnergySource(None, None, None, "there is no counter"), device.call, 1, device.clock)
    assert "there is no counter" in caught.value.why


def test_no_counter_is_null_and_a_reason(monkeypatch, tmp_path):
    pytest.importorskip("zeus", reason="needs the extra `energy` (zeus), which is not installed")
    monkeypatch.setattr(energy, "RAPL", (str(tmp_path / "nowhere"),))
    found = look_for_energy("cpu")
    assert (found.counter, found.step_s, found.idle_w) == (None, None, None)
    assert "RAPL" in str(found.reason)


class ReplayedGpus:
    """Zeus' view of one GPU, whose counter is a replayed one, in millijoules as NVML has it."""

    def __init__(self, device: Replay) -> None:
        self._device = device

    @property
    def gpus(self):
        return [SimpleNamespace(handle="of the GPU that the counter is of")]

    def __len__(self) -> int:
        return 1

    def supports_get_total_energy_consumption(self, index: int) -> bool:
        return index == 0

    def get_power_management_limit(self, index: int) -> int:
        return 400_000

    def get_total_energy_consumption(self, index: int) -> int:
        return round(self._device.read_j() * 1000)


def test_a_gpu_is_read_through_zeus(monkeypatch):
    device_layer = pytest.importorskip("zeus.device", reason="needs the extra `energy` (zeus), which is not installed")
    device = Replay(0.1)
    monkeypatch.setattr(device_layer, "get_gpus", lambda: ReplayedGpus(device))
    found = look_for_energy("cuda", device.clock)
    assert found.counter is not None
    assert "NVML" in found.counter
    assert found.idle_w == pytest.approx(IDLE_W, rel=1 / WINDOW_STEPS)


def test_the_clock_is_that_of_the_gpu_whose_energy_is_read(monkeypatch):
    """Of the GPUs that are there, this process may see others than the first."""
    device_layer = pytest.importorskip("zeus.device", reason="needs the extra `energy` (zeus), which is not installed")
    import pynvml

    monkeypatch.setattr(device_layer, "get_gpus", lambda: ReplayedGpus(Replay(0.1)))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: "of the first")
    clocks = {"of the first": 345, "of the GPU that the counter is of": 1410}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda handle, kind: clocks[handle])
    assert energy.find_counter("cuda").settings() == (1410, 400.0)


@pytest.fixture
def rapl(monkeypatch, tmp_path):
    """A package of RAPL in a folder, as Zeus reads it; the fixture moves its counter and says how often it wrapped."""
    module = pytest.importorskip(
        "zeus.device.cpu.rapl", reason="needs the extra `energy` (zeus), which is not installed"
    )
    import zeus.device.cpu

    zone = tmp_path / "intel-rapl" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0")
    (zone / "max_energy_range_uj").write_text("262143328850")
    (zone / "energy_uj").write_text("0")
    monkeypatch.setattr(module, "RAPL_DIR", str(zone.parent))
    monkeypatch.setattr(zeus.device.cpu, "_cpus", None)
    monkeypatch.setattr(energy, "RAPL", (str(zone.parent),))
    module.rapl_is_available.cache_clear()
    wraps = {"seen": 0}
    tracker = type("Tracker", (), {"get_num_wraparounds": lambda self: wraps["seen"]})()
    monkeypatch.setattr(module.RAPLFile, "wraparound_tracker", tracker)
    yield lambda joules, seen=0: ((zone / "energy_uj").write_text(str(int(joules * 1e6))), wraps.update(seen=seen))
    module.rapl_is_available.cache_clear()


def test_a_wrap_of_rapl_is_undone(rapl):
    range_j = 262143.32885
    rapl(range_j - 40)
    counter = energy.find_counter("cpu")
    before = counter.read_j()
    rapl(10, seen=1)
    assert difference(before, counter.read_j(), seconds=60, step_s=0.001) == pytest.approx(50, abs=1e-5)


def test_a_wrap_that_is_not_noticed_yet_is_refused(rapl):
    rapl(262143)
    counter = energy.find_counter("cpu")
    before = counter.read_j()
    rapl(10, seen=0)
    with pytest.raises(HostError, match="energy is not measured"):
        difference(before, counter.read_j(), seconds=60, step_s=0.001)
