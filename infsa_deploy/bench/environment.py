"""The machine as Linux tells it: what it is, how busy it is, and the memory that is free."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from infsa_deploy.records.bench import Machine
from infsa_deploy.runtime.cores import usable_cores
from infsa_deploy.runtime.memory import available_bytes

PACKAGES = ("torch", "onnxruntime", "onnxruntime-gpu", "openvino", "onnx", "tensorrt", "tensorrt-rtx-cu13", "zeus")
CPU_INFO, STAT = Path("/proc/cpuinfo"), Path("/proc/stat")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
STEAL, FIELDS = 7, 8  # user, nice, system, idle, iowait, irq, softirq, steal; user counts guest time, which follows
HEADROOM = 0.95  # of the free memory: the rest keeps the machine alive


def this_machine() -> Machine:
    """Name the processor, usable cores, memory, GPUs as the driver's own tool lists them, and package versions."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text() if CPU_INFO.exists() else "", re.M)
    versions: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return Machine(
        processor=cpu[1].strip() if cpu else platform.processor() or platform.machine(),
        cores=usable_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        platform=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        gpus=_gpus(),
        packages=versions,
    )


def governor() -> str | None:
    """Read how the kernel sets the clock of the first core; None where it does not say."""
    return GOVERNOR.read_text().strip() if GOVERNOR.exists() else None


def cpu_ticks() -> tuple[int, ...] | None:
    """Read the CPU time of all cores up to now, by what it was spent on; None where the system does not count it."""
    try:
        counts = tuple(map(int, STAT.read_text().split()[1 : FIELDS + 1]))
    except (OSError, ValueError):
        return None
    return counts if len(counts) == FIELDS else None


def steal_share(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> tuple[float | None, str | None]:
    """Compute the share of the CPU time between two readings that the hypervisor gave to others; None and a reason."""
    if before is None or after is None:
        return None, f"{STAT} has no CPU counters that can be read"
    passed = sum(after) - sum(before)
    if passed <= 0:
        return None, f"the CPU counters of {STAT} do not move"
    return (after[STEAL] - before[STEAL]) / passed, None


def usable_bytes() -> int | None:
    """Tell how much memory a new process can use, with some left for the rest of the machine; None if unknown."""
    free = available_bytes()
    return None if free is None else int(free * HEADROOM)


def _gpus() -> tuple[str, ...]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if line.strip())
