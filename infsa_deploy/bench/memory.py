"""Memory of this machine and of this process, as Linux tells it; None where it does not."""

from __future__ import annotations

import ctypes
import re
import signal
import sys
from pathlib import Path
from typing import Any

from infsa_deploy.runtime import memory

PR_SET_PDEATHSIG = 1
HEADROOM = 0.95  # of what is free: the rest keeps the machine alive


def available_bytes() -> int | None:
    """What a new process can use, with some left for the rest of the machine."""
    free = memory.available_bytes()
    return None if free is None else int(free * HEADROOM)


def peak_bytes(device: str) -> int | None:
    """Largest resident size of this process since its start, or since `forget_peak`.

    On `cuda` the largest sum of PyTorch's tensors there; None for other runtimes, whose allocations are not seen.
    """
    if device == "cuda":
        cuda = _torch_cuda()
        return int(cuda.max_memory_allocated()) if cuda else None
    return _status_bytes("self", "VmHWM")


def resident_bytes(process: int) -> int | None:
    """What a process holds in memory now."""
    return _status_bytes(process, "VmRSS")


def forget_peak(device: str) -> None:
    """Give freed memory back, then let `peak_bytes` start from what is resident now, where the kernel can do that."""
    if device == "cuda" and (cuda := _torch_cuda()):
        cuda.reset_peak_memory_stats()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):  # another libc, or another kernel: the peak then covers loading too
        return


def limit_memory(limit: int | None) -> None:
    """Make allocations past `limit` bytes fail in this process, rather than push the machine out of memory."""
    import resource

    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone, however it ended (Linux)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def _torch_cuda() -> Any:
    """PyTorch's side of the GPU, if this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch and torch.cuda.is_initialized() else None


def _status_bytes(process: int | str, field: str) -> int | None:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    match = re.search(rf"^{field}:\s+(\d+) kB", status, re.M)
    return int(match[1]) * 1024 if match else None
