"""What a kernel needs to be compiled ahead of time and launched from C++: argument types, tile sizes, warps.

How the tiles were chosen. A tensor-core kernel wants the largest tile whose accumulators leave no register spilled:
the bytes it loads for one multiply-add fall with the tile's side. A kernel that streams memory wants enough bytes in
flight on an SM (latency times bandwidth: about 10 KiB on an A100, 25 KiB on an H100), which asynchronous copies into
2 to 4 stages of shared memory give. Limits: 65536 registers an SM, 255 a thread; shared memory of a block 163 KiB on
SM 80, 227 KiB on SM 90 and 100, 99 KiB on the others. `aot.py --report` prints what each choice comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

DTYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Tile:
    """Compile-time constants of one variant of a kernel, the warps of a block, and the stages of its pipeline."""

    constants: Mapping[str, int | bool]
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class Kernel:
    """A kernel and its variants.

    Attributes:
        name: how the C++ library asks for it.
        function: the Triton function.
        arguments: name to type, in order; `*T` is a pointer to the I/O type, `*fp32` to float32, or `i32`, `fp32`.
        tiles: from I/O type and SM to the variants, each under the largest size that it serves (head dimension or
            channels), or under 0 where one serves all.
        multiples: arguments promised to be multiples of a number; every pointer is promised to be one of 16.
        dtypes: the I/O types that need the kernel.
        product: whether it multiplies matrices, which it must do on tensor cores.
    """

    name: str
    function: Any
    arguments: Mapping[str, str]
    tiles: Callable[[str, int], Mapping[int, Tile]]
    multiples: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = DTYPES
    product: bool = False


def same_for_all(**constants: int) -> Callable[[str, int], Mapping[int, Tile]]:
    """One variant for every type and SM."""
    return lambda dtype, sm: {0: Tile(constants)}
