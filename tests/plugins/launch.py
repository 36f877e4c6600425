"""The three ops by direct kernel launches, in Python: the plugins' host code without C++.

On tensors of a CPU the kernels run in the interpreter; on those of a GPU what `aot.py` compiled is launched, or else
the kernels are compiled there. Results and buffers start as NaN, so that a value never written cannot pass.
"""

from __future__ import annotations

from typing import Any

import torch
from infsa_plugins import pooling
from infsa_plugins.centrality_pool import kernel as centrality_pool
from infsa_plugins.energy_pool import kernel as energy_pool
from infsa_plugins.kernels import Kernel
from infsa_plugins.neumann_attention import kernel as neumann_attention

from tests.plugins.compiled import CompiledKernels

KERNELS = {
    kernel.name: kernel
    for module in (neumann_attention, energy_pool, centrality_pool, pooling)
    for kernel in module.KERNELS
}
DTYPE_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


MOST_KEYS = 8192  # in one float32 sum, as in plugin.cpp


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Launcher:
    """Launches kernels for tensors like `example`, choosing variants as the C++ library does.

    `code` holds compiled kernels; `poison` is turned off where filling buffers would be timed.
    """

    def __init__(
        self,
        example: torch.Tensor,
        sm: int = 80,
        programs: int = 8,
        code: CompiledKernels | None = None,
        poison: bool = True,
    ) -> None:
        self.dtype, self.device = example.dtype, example.device
        self.code, self.poison = code, poison
        self.sm, self.programs = sm, programs
        if self.device.type == "cuda":
            found = torch.cuda.get_device_properties(self.device)
            self.sm, self.programs = 10 * found.major + found.minor, min(2 * found.multi_processor_count, 512)

    def nan(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if not self.poison:
            return torch.empty(shape, dtype=dtype, device=self.device)
        return torch.full(shape, float("nan"), dtype=dtype, device=self.device)

    def variant(self, name: str, size: int = 0) -> tuple[int, Any]:
        variants = KERNELS[name].tiles(DTYPE_NAMES[self.dtype], self.sm)
        limit = min(limit for limit in variants if limit >= size)
        return limit, variants[limit]

    def tile(self, name: str, size: int = 0) -> Any:
        return self.variant(name, size)[1]

    def __call__(self, name: str, grid: int, *arguments: Any, size: int = 0) -> None:
        kernel: Kernel = KERNELS[name]
        limit, tile = self.variant(name, size)
        if self.code:
            self.code.launch(name, DTYPE_NAMES[self.dtype], limit, grid, arguments)
            return
        options = {"num_warps": tile.warps, "num_stages": tile.stages} if self.device.type == "cuda" else {}
        kernel.function[(grid,)](*arguments, **tile.constants, **options)

    def runs(self, rows: int, tokens: int, block: int) -> tuple[int, int]:
        """How many runs a row's tokens are cut into, and the tiles of a run."""
        tiles = ceil_div(tokens, block)
        run_tiles = ceil_div(tiles, min(tiles, ceil_div(self.programs, rows)))
        return ceil_div(tiles, run_tiles), run_tiles


def attend(
    qkv: torch.Tensor, heads: int, rho: float, hops: int, eps: float, rows: int = 0, **where: Any
) -> torch.Tensor:
    """NeumannAttention; arguments as the op's."""
    B, N, packed = qkv.shape
    D, groups = packed // 3 // heads, B * heads
    name = "attend_cut" if rows and hops == 1 else "attend"
    rows = rows or N
    first_rows = rows if hops == 1 else N
    launch = Launcher(qkv, **where)
    tile = launch.tile(name, D).constants
    bound_block = launch.tile("bound_keys").constants["BLOCK_T"]
    bound_blocks, blocks = ceil_div(N, bound_block), ceil_div(N, tile["BLOCK_M"])
    bounds, squares, scales = launch.nan(groups, bound_blocks), launch.nan(groups, blocks), launch.nan(groups)
    u, y = launch.nan(B, first_rows, heads * D), launch.nan(B, first_rows, heads * D, dtype=qkv.dtype)
    if tile["SHIFT"]:
        launch("bound_keys", groups * bound_blocks, qkv, bounds, N, heads, D)
    span = MOST_KEYS if tile["SPANS"] else N
    spans = [(begin, min(begin + span, N)) for begin in range(0, N, span)]
    for keys in spans:
        launch(name, groups * blocks, qkv, bounds, u, squares, N, first_rows, heads, D, bound_blocks, *keys, size=D)
    cells = ceil_div(first_rows, launch.tile("normalise").constants["BLOCK_T"])
    launch("normalise", groups * cells, u, squares, scales, y, first_rows, heads, D, blocks, rho, eps)
    for left in reversed(range(hops - 1)):
        count = N if left else rows
        grid = groups * ceil_div(count, tile["BLOCK_M"])
        previous, y = y, launch.nan(B, count, heads * D, dtype=qkv.dtype)
        for keys in spans:
            launch("hop", grid, qkv, bounds, u, scales, previous, y, N, count, heads, D, bound_blocks, *keys, size=D)
    return y


def _pool(launch: Launcher, weights: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    B, H, N = weights.shape
    E, groups = x.shape[-1], ceil_div(H, 16)
    tile = launch.tile("pool").constants
    spans = ceil_div(E, tile["BLOCK_E"])
    runs, run_tiles = launch.runs(B * groups * spans, N, tile["BLOCK_T"])
    sums, masses = launch.nan(B, groups, runs, 16, E), launch.nan(B, groups, runs, 16)
    launch("pool", B * groups * runs * spans, weights, x, sums, masses, N, H, E, runs, run_tiles)
    return sums, masses, runs


def _combine(
    launch: Launcher, sums: torch.Tensor, masses: torch.Tensor, heads: int, runs: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    B, E = sums.shape[0], sums.shape[-1]
    pooled = launch.nan(B, heads, E, dtype=launch.dtype)
    mass, totals = launch.nan(B, heads, dtype=launch.dtype), launch.nan(B, heads)
    spans = ceil_div(E, launch.tile("combine").constants["BLOCK_E"])
    launch("combine", B * heads * spans, sums, masses, pooled, mass, totals, heads, E, runs, eps)
    return pooled, mass, totals


def energy(q: torch.Tensor, x: torch.Tensor, heads: int, eps: float, **where: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """EnergyPool; arguments as the op's."""
    B, N, width = q.shape
    launch = Launcher(x, **where)
    tile = launch.tile("energies").constants
    weights = launch.nan(B, heads, N)
    grid = B * ceil_div(heads, tile["BLOCK_H"]) * ceil_div(N, tile["BLOCK_T"])
    launch("energies", grid, q, weights, N, heads, width // heads)
    sums, masses, runs = _pool(launch, weights, x)
    return _combine(launch, sums, masses, heads, runs, eps)[:2]


def centrality(
    x: torch.Tensor, u: torch.Tensor, c: torch.Tensor, eps: float, keep: bool = True, **where: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """CentralityPool; arguments as the op's, `keep` asks for the third output."""
    B, N, E = x.shape
    H = u.shape[1]
    groups = ceil_div(H, 16)
    launch = Launcher(x, **where)
    scores = launch.nan(B, H, N)
    if max(KERNELS["score_and_pool"].tiles(DTYPE_NAMES[x.dtype], launch.sm)) >= E:
        runs, run_tiles = launch.runs(B * groups, N, launch.tile("score_and_pool", E).constants["BLOCK_T"])
        sums, masses = launch.nan(B, groups, runs, 16, E), launch.nan(B, groups, runs, 16)
        arguments = (x, u, c, sums, masses, scores, N, H, E, runs, run_tiles, int(keep))
        launch("score_and_pool", B * groups * runs, *arguments, size=E)
    else:
        blocks = ceil_div(N, launch.tile("score").constants["BLOCK_T"])
        launch("score", B * groups * blocks, x, u, c, scores, N, H, E)
        sums, masses, runs = _pool(launch, scores, x)
    pooled, mass, totals = _combine(launch, sums, masses, H, runs, eps)
    if not keep:
        return pooled, mass, None
    shares = launch.nan(B, H, N, dtype=x.dtype)
    blocks = ceil_div(N, launch.tile("centralities").constants["BLOCK_T"])
    launch("centralities", B * H * blocks, scores, totals, shares, N)
    return pooled, mass, shares
