"""Energy by the difference of a counter over windows of whole calls.

The counter is the GPU's own (NVML, total energy) or the CPU packages' (RAPL), read through Zeus, which also undoes
the wraps of RAPL. A counter moves in steps (about 100 ms on a GPU): over a window of n steps the difference is
right to 1 part in n, so windows are sized by the step that is found, and shorter ones are refused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from infsa_deploy.errors import HostError
from infsa_deploy.records.bench import Energy, EnergySource

WINDOW_STEPS, WINDOW_S, WINDOWS = 50, 3.0, 3
STEPS_WATCHED, LONGEST_STEP_S = 5, 2.0
COOL_DOWN_S = 1.0
RAPL = ("/sys/class/powercap/intel-rapl", "/zeus_sys/class/powercap/intel-rapl")


def find_counter(device: str) -> Counter:
    """Find the energy counter of `device`, `cpu` or `cuda`; HostError, saying why, where there is none."""
    try:
        import zeus.device
    except ModuleNotFoundError as error:
        raise _not_measured("the package zeus is not installed.", "pip install 'infsa-deploy[energy]'") from error
    return _GpuCounter(zeus.device) if device == "cuda" else _CpuCounter(zeus.device)


def look_for_energy(device: str, clock: Any = time) -> EnergySource:
    """Find the counter and its step, and take the idle power before anything runs; `clock` is as the module time."""
    try:
        counter = find_counter(device)
        step_s = find_step(counter, clock)
        return EnergySource(counter.name, step_s, idle_power(counter, step_s, clock), None)
    except HostError as error:
        return EnergySource(None, None, None, error.why)


def find_step(counter: Counter, clock: Any) -> float:
    """Measure the seconds between two moves of the counter, the longest of a few; HostError when it stands still."""
    changes: list[float] = []
    value, since = counter.read_j(), clock.perf_counter()
    while len(changes) < STEPS_WATCHED + 1:
        clock.sleep(0.001)
        found, now = counter.read_j(), clock.perf_counter()
        if found != value:
            changes.append(now)
            value, since = found, now
        elif now - since > LONGEST_STEP_S:
            raise _not_measured(f"{counter.name} did not move for {LONGEST_STEP_S:g} s.")
    return max(later - earlier for earlier, later in itertools.pairwise(changes))


def idle_power(counter: Counter, step_s: float, clock: Any) -> float:
    """Measure the watts while nothing of ours runs."""
    joules, seconds, _ = _window(counter, lambda: clock.sleep(step_s), step_s, clock)
    return joules / seconds


def measure(counter: Counter, source: EnergySource, call: Callable[[], Any], images: int, clock: Any = time) -> Energy:
    """Measure the energy of `call`, which computes `images` images; HostError where the counter or idle power fails."""
    if source.step_s is None or source.idle_w is None:
        raise _not_measured(source.reason or "")
    gross, net, rates, lengths = [], [], [], []
    for _ in range(WINDOWS):
        clock.sleep(COOL_DOWN_S)
        joules, seconds, calls = _window(counter, call, source.step_s, clock)
        gross.append(joules / (calls * images))
        net.append((joules - source.idle_w * seconds) / (calls * images))
        rates.append(calls * images / seconds)
        lengths.append(seconds)
    windows = (WINDOWS, max(lengths), stdev(gross) / fmean(gross))
    return Energy(fmean(gross), fmean(net), source.idle_w, *windows, fmean(rates), *counter.settings())


def difference(start_j: float, end_j: float, seconds: float, step_s: float) -> float:
    """Joules of a window; HostError when it is shorter than the counter can resolve, or the counter ran backwards."""
    if seconds < WINDOW_STEPS * step_s:
        why = f"a window of {seconds:.3g} s is less than {WINDOW_STEPS} steps of the counter, {step_s:.3g} s each."
        raise _not_measured(why, "measure for longer.")
    if end_j < start_j:
        raise _not_measured(f"the counter ran backwards, from {start_j:g} to {end_j:g} J.", "run it again.")
    return end_j - start_j


def _window(counter: Counter, call: Callable[[], Any], step_s: float, clock: Any) -> tuple[float, float, int]:
    """Joules, seconds and number of calls of one window, which ends with a call."""
    wanted, calls = max(WINDOW_S, WINDOW_STEPS * step_s), 0
    start_j, start = counter.read_j(), clock.perf_counter()
    while clock.perf_counter() - start < wanted:
        call()
        calls += 1
    end_j, seconds = counter.read_j(), clock.perf_counter() - start
    return difference(start_j, end_j, seconds, step_s), seconds, calls


def _not_measured(why: str, fix: str = "") -> HostError:
    return HostError("energy is not measured.", why, fix)


class _GpuCounter:
    """The first GPU that this process sees, by NVML's total energy. Clock in MHz and power limit in W."""

    name = "NVML total energy of GPU 0, through Zeus"

    def __init__(self, device: Any) -> None:
        try:
            self._gpus = device.get_gpus()
            supported = len(self._gpus) > 0 and self._gpus.supports_get_total_energy_consumption(0)
        except Exception as error:  # Zeus has a type for each of NVML's errors, and none for all
            raise _not_measured(f"Zeus finds no GPU: {error}") from error
        if not supported:
            raise _not_measured("the GPU has no energy counter (it came with Volta).")

    def read_j(self) -> float:
        return float(self._gpus.get_total_energy_consumption(0)) / 1000

    def settings(self) -> tuple[int | None, float | None]:
        import pynvml

        clock = pynvml.nvmlDeviceGetClockInfo(self._gpus.gpus[0].handle, pynvml.NVML_CLOCK_SM)
        return int(clock), float(self._gpus.get_power_management_limit(0)) / 1000


class _CpuCounter:
    """All CPU packages and their memory, by RAPL: everything on the machine, other programs included."""

    name = "RAPL of all packages, through Zeus"

    def __init__(self, device: Any) -> None:
        if not any(Path(folder).exists() for folder in RAPL):
            raise _not_measured(f"this machine shows no RAPL counter ({RAPL[0]}).")
        try:
            self._cpus = device.get_cpus()
            self.read_j()
        except Exception as error:  # no permission, a zone that cannot be read, ...: Zeus has a type for each
            raise _not_measured(f"RAPL cannot be read: {error}", "read it as root.") from error

    def read_j(self) -> float:
        zones = [self._cpus.get_total_energy_consumption(index) for index in range(len(self._cpus))]
        return sum(float(zone.cpu_mj) + float(zone.dram_mj or 0) for zone in zones) / 1000

    def settings(self) -> tuple[int | None, float | None]:
        return None, None


Counter = _GpuCounter | _CpuCounter
