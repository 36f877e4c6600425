"""Memory: whether a run fits this machine, asked before anything is allocated; what this process takes."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from infsa_deploy.errors import HostError
from infsa_deploy.files import format_bytes
from infsa_deploy.records.model import ImageSpec, MemoryNeed, ModelMetadata

FLOAT_BYTES = 4
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory this process may still take: what the kernel says, or what its control group leaves; None if unknown."""
    if not MEMINFO.exists():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    maximum = CGROUP / "memory.max"
    if maximum.exists() and (limit := maximum.read_text().strip()).isdigit():
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        cached = int(counts["active_file"]) + int(counts["inactive_file"])  # counted as used, and given up on demand
        free = min(free, int(limit) - int((CGROUP / "memory.current").read_text()) + cached)
    return free


def peak_bytes(device: str) -> int | None:
    """Tell the largest resident size of this process since its start, or since `forget_peak`.

    On `cuda` it is the largest sum of PyTorch's tensors there; None for other runtimes, whose allocations are not seen.
    """
    if device == "cuda":
        cuda = _torch_cuda()
        return int(cuda.max_memory_allocated()) if cuda else None
    status = Path("/proc/self/status")
    match = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text() if status.exists() else "", re.M)
    return int(match[1]) * 1024 if match else None


def forget_peak(device: str) -> None:
    """Give freed memory back, then let `peak_bytes` start from what is resident now, where the kernel can do that."""
    if device == "cuda" and (cuda := _torch_cuda()):
        cuda.reset_peak_memory_stats()
    with suppress(OSError, AttributeError):  # another libc, or another kernel: the peak then covers loading too
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def limit_memory(limit_bytes: int | None) -> None:
    """Make allocations past the limit fail in this process, rather than push the machine out of memory."""
    import resource

    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def token_count(need: MemoryNeed, image: ImageSpec) -> int | None:
    """Tokens of an image of the spec's size; None for a foreign module, whose tokens we cannot tell."""
    if need.patch is None:
        return None
    return (image.height // need.patch) * (image.width // need.patch) + 1


def describe_need(metadata: ModelMetadata, image: ImageSpec, batch: int = 1) -> str:
    """One line: tokens, the memory of weights and activations, and how large N x N is where attention has one."""
    need, tokens = metadata.memory, token_count(metadata.memory, image)
    counted = f"{tokens:,} tokens, " if tokens else ""
    affinity = _affinity_bytes(metadata, tokens)
    total, squared = need.total_bytes(tokens, batch), ""
    if affinity:
        size, held = format_bytes(affinity * batch), affinity * batch <= total
        squared = f", of it {size} for N x N over all heads" if held else f"; N x N, {size} over all heads, in tiles"
    return f"{batch} x {image.height}x{image.width}: {counted}at least {format_bytes(total)} of memory{squared}"


def check_fits(metadata: ModelMetadata, image: ImageSpec, batch: int = 1) -> None:
    """Raise HostError when a batch of such images needs more memory than there is, naming the alternative."""
    free, needed = available_bytes(), metadata.memory.total_bytes(token_count(metadata.memory, image), batch)
    if free is None or needed <= free:
        return
    raise HostError(
        f"this machine has not the memory: {describe_need(metadata, image, batch)}.",
        f"{format_bytes(free)} are free.",
        _alternative(metadata),
    )


def largest_batch(metadata: ModelMetadata, image: ImageSpec, most: int) -> int:
    """How many images of up to `most` a run may have in the memory that is free; at least one."""
    free, need = available_bytes(), metadata.memory
    one = need.total_bytes(token_count(need, image)) - need.weights_bytes
    if free is None or one <= 0:
        return most
    return max(1, min(most, int((free - need.weights_bytes) // one)))


def _torch_cuda() -> Any:
    """PyTorch's side of the GPU, if this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch and torch.cuda.is_initialized() else None


def _alternative(metadata: ModelMetadata) -> str:
    if metadata.variant != "linear":
        return "use a linear model, which has no N x N, or a smaller image."
    if not metadata.tile_tokens:
        return "export with --tile-tokens 4096, which does not hold the wide activations of all tokens."
    return "use a smaller image."


def _affinity_bytes(metadata: ModelMetadata, tokens: int | None) -> int:
    heads = metadata.architecture.get("num_heads")
    if metadata.variant == "linear" or not tokens or not heads:
        return 0
    return int(heads) * tokens * tokens * FLOAT_BYTES
