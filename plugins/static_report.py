"""What the compiled kernels use, read from their machine code: `aot.py --report`.

The gates: no kernel spills registers, none exceeds its SM's shared memory, and every kernel with a matrix product has
tensor-core instructions inside a loop. Exit code 0 when all hold, 6 otherwise. Nothing here ran on a GPU.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BLOCK_SHARED = {80: 163, 90: 227, 100: 227}  # KiB that one block may have; 99 on the other SMs
SM_SHARED = {80: 164, 90: 228, 100: 228}  # KiB of an SM; 100 on the others; a block costs 1 KiB more than it asks for
SM_WARPS = {80: 64, 90: 64, 100: 64}  # 48 on the others
SM_REGISTERS = 65536
TENSOR_CORE = re.compile(r"\b(?:HMMA|IMMA|HGMMA|UTCHMMA|UTCQMMA)\b")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
BRANCH = re.compile(r"\bBRA\b.*\b0x([0-9a-f]+)")


@dataclass(frozen=True)
class Usage:
    """One kernel on one SM."""

    kernel: str
    dtype: str
    limit: int
    sm: int
    warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    blocks_per_sm: int
    occupancy: float  # resident warps, of the most that an SM holds
    tensor_core_loop: int  # tensor-core instructions inside a loop
    async_copies: int
    failures: list[str]


def _dump(option: str, code: str) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([str(tool), option, code], capture_output=True, text=True, check=True).stdout


def looped_tensor_core_instructions(sass: str) -> int:
    """How many stand between the target of a backward branch and the branch."""
    addresses = [(int(at, 16), text) for at, text in INSTRUCTION.findall(sass)]
    loops = [
        (int(found[1], 16), at) for at, text in addresses if (found := BRANCH.search(text)) and int(found[1], 16) < at
    ]
    return sum(any(start <= at <= end for start, end in loops) for at, text in addresses if TENSOR_CORE.search(text))


def usage(entry: dict[str, Any], has_product: bool) -> Usage:
    """Read one table entry's machine code."""
    found = re.search(r"REG:(\d+) STACK:(\d+)", _dump("-res-usage", entry["code"]))
    sass = _dump("-sass", entry["code"])
    registers, stack = int(found[1]), int(found[2])
    spilled = stack if re.search(r"\b(?:STL|LDL)\b", sass) else 0
    sm, warps = entry["sm"], entry["warps"]
    by_registers = SM_REGISTERS // (-(-registers // 8) * 8 * 32 * warps)
    blocks = min(
        by_registers, SM_SHARED.get(sm, 100) * 1024 // (entry["shared"] + 1024), SM_WARPS.get(sm, 48) // warps, 32
    )
    tensor = looped_tensor_core_instructions(sass)
    failures = []
    if spilled:
        failures.append(f"spills {spilled} bytes")
    if entry["shared"] > BLOCK_SHARED.get(sm, 99) * 1024:
        failures.append("shared memory beyond the SM's limit")
    if has_product and not tensor:
        failures.append("no tensor core in a loop")
    if blocks < 1:
        failures.append("does not fit an SM")
    return Usage(
        *(entry[key] for key in ("kernel", "dtype", "limit", "sm", "warps")),
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=entry["shared"],
        blocks_per_sm=blocks,
        occupancy=round(blocks * warps / SM_WARPS.get(sm, 48), 3),
        tensor_core_loop=tensor,
        async_copies=len(re.findall(r"\b(?:LDGSTS|UBLKCP|UTMALDG)\b", sass)),
        failures=failures,
    )


def table(rows: list[Usage]) -> str:
    head = f"{'kernel':15} {'type':5} {'up to':>6} {'SM':>3} {'warps':>5} {'regs':>4} {'spill':>5} {'shared':>7}"
    lines = [f"{head} {'blocks':>6} {'occup.':>6} {'tensor':>6} {'async':>5}"]
    for row in rows:
        lines.append(
            f"{row.kernel:15} {row.dtype:5} {row.limit or 'any':>6} {row.sm:>3} {row.warps:>5} {row.registers:>4} "
            f"{row.spilled_bytes:>5} {row.shared_bytes:>7} {row.blocks_per_sm:>6} {row.occupancy:>6.0%} "
            f"{row.tensor_core_loop:>6} {row.async_copies:>5}  {'; '.join(row.failures)}".rstrip()
        )
    return "\n".join(lines)


def run(entries: list[dict[str, Any]], as_json: bool, products: set[str]) -> int:
    """Print the report of `entries`; `products` names the kernels with a matrix product."""
    rows = [usage(entry, entry["kernel"] in products) for entry in entries]
    print(json.dumps([asdict(row) for row in rows], indent=1) if as_json else table(rows))
    return 6 if any(row.failures for row in rows) else 0
