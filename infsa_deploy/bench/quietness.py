"""How much of the machine other processes took while something was measured."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from infsa_deploy.runtime.cores import usable_cores

WATCHES, WATCHED_S = 5, 0.6
STAT = Path("/proc/stat")
FIELDS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guest time, which follows, is in user already
IDLE = slice(3, 5)


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds up to now: of all cores, of them busy, and of this process and the children it has waited for."""

    total_s: float
    busy_s: float
    own_s: float


def cpu_times() -> CpuTimes | None:
    """The counters as they stand; None where the system has none. Children still running are not in `own_s`."""
    try:
        name, *ticks = STAT.read_text().splitlines()[0].split()
        counts = [int(tick) / os.sysconf("SC_CLK_TCK") for tick in ticks[:FIELDS]]
    except (OSError, IndexError, ValueError):
        return None
    if name != "cpu" or len(counts) < FIELDS:
        return None
    total = sum(counts)
    return CpuTimes(total, total - sum(counts[IDLE]), sum(os.times()[:4]))


def others_share(before: CpuTimes | None, after: CpuTimes | None) -> tuple[float | None, str | None]:
    """Share of all CPU time between the two that others took, 0 to 1, or None; and then the reason.

    What a hypervisor took (steal) counts as theirs. In ticks of 10 ms, ours may exceed what was busy: that is 0.
    """
    if before is None or after is None:
        return None, f"{STAT} has no CPU counters that can be read"
    if after.total_s <= before.total_s:
        return None, f"the CPU counters of {STAT} do not move"
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others) / (after.total_s - before.total_s), None


def free_cores() -> int:
    """Cores that this process may use and others mostly leave idle, over a few seconds; 1 at least.

    On a core that is shared, a thread holds up all that wait for it: runtimes that cut work into equal parts lose more
    by it than those that hand out small ones, and their ratio moves. A command that someone runs just then is no reason
    to measure for half an hour with fewer: the median of several looks counts.
    """
    counters = [cpu_times()]
    for _ in range(WATCHES):
        time.sleep(WATCHED_S)
        counters.append(cpu_times())
    shares = [others_share(before, after)[0] or 0.0 for before, after in pairwise(counters)]
    return max(1, usable_cores() - round(statistics.median(shares) * (os.cpu_count() or 1)))
