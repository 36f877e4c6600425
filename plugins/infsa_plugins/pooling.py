"""What EnergyPool and CentralityPool share on a GPU: a weighted sum of tokens, in two deterministic stages.

In stage one each program owns a run of tokens and adds weights^T x, tile by tile, to accumulators it keeps in
registers; 16 heads are one tensor-core tile. In stage two `combine` adds the programs' results in a fixed order.
"""

import triton
import triton.language as tl

from infsa_plugins.kernels import Kernel, Tile, same_for_all
from infsa_plugins.precision import weighted_product

HEADS = tl.constexpr(16)


@triton.jit
def load_tile(rows, start, tokens, embed, first, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr):
    """Channels first .. first + BLOCK_E of a tile of tokens, zero where there is none."""
    t = tl.arange(0, BLOCK_T)
    e = first + tl.arange(0, BLOCK_E)
    inside = (t < tokens - start)[:, None] & (e < embed)[None, :]
    return tl.load(rows + t[:, None] * embed + e[None, :], mask=inside, other=0.0)


@triton.jit
def store_partial(sums, acc, slot, embed, first, BLOCK_E: tl.constexpr):
    """Write an accumulator [16, BLOCK_E] to its slot of sums [slots, 16, embed], from channel `first` on."""
    h = tl.arange(0, HEADS)
    e = first + tl.arange(0, BLOCK_E)
    at = (slot.to(tl.int64) * HEADS + h)[:, None] * embed + e[None, :]
    tl.store(sums + at, acc, mask=(h >= 0)[:, None] & (e < embed)[None, :])


@triton.jit
def pool(
    weights, x, sums, masses, tokens, heads, embed, runs, run_tiles,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The sums of w x and of w over one run of `run_tiles` tiles of tokens.

    weights [B, H, N] float32, x [B, N, E]; sums [B, head groups, runs, 16, E] and masses [B, head groups, runs, 16]
    float32; grid (runs * E spans * head groups * B), x's reader of the same tokens next to each other.
    """
    spans = tl.cdiv(embed, BLOCK_E)
    groups = tl.cdiv(heads, HEADS)
    pid = tl.program_id(0)
    first = (pid % spans) * BLOCK_E
    run = (pid // spans) % runs
    row = pid // (spans * runs)  # batch and head group
    batch = (row // groups).to(tl.int64)
    h = (row % groups) * HEADS + tl.arange(0, HEADS)
    t = tl.arange(0, BLOCK_T)
    weights += batch * heads * tokens
    x += batch * tokens * embed
    acc = tl.zeros((HEADS, BLOCK_E), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    end = tl.minimum((run + 1) * run_tiles * BLOCK_T, tokens)
    for start in range(run * run_tiles * BLOCK_T, end, BLOCK_T):
        inside = (h < heads)[:, None] & (t < tokens - start)[None, :]
        w = tl.load(weights + h.to(tl.int64)[:, None] * tokens + start + t[None, :], mask=inside, other=0.0)
        total += tl.sum(w, 1)
        tile = load_tile(x + tl.cast(start, tl.int64) * embed, start, tokens, embed, first, BLOCK_T, BLOCK_E)
        acc = weighted_product(w, tile, acc)
    slot = row * runs + run
    store_partial(sums, acc, slot, embed, first, BLOCK_E)
    if first == 0:
        tl.store(masses + slot * HEADS + tl.arange(0, HEADS), total)


@triton.jit
def combine(
    sums, masses, pooled, mass, totals, heads, embed, runs, eps,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """pooled [B, H, E] = sums / (mass + eps) and mass [B, H] = mass / (mass + eps), both over all runs.

    totals [B, H] = mass + eps, float32, is what a weight is divided by to be a share; grid (B * H * E blocks).
    """
    spans = tl.cdiv(embed, BLOCK_E)
    row = tl.program_id(0) // spans
    span = tl.program_id(0) % spans
    head = row % heads
    groups = tl.cdiv(heads, HEADS)
    first = ((row // heads) * groups + head // HEADS) * runs
    r = tl.arange(0, BLOCK_R)
    e = span * BLOCK_E + tl.arange(0, BLOCK_E)
    acc = tl.zeros((BLOCK_R, BLOCK_E), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    for start in range(0, runs, BLOCK_R):
        slot = (first + start + r) * HEADS + head % HEADS
        here = start + r < runs
        total += tl.load(masses + slot, mask=here, other=0.0)
        at = slot.to(tl.int64)[:, None] * embed + e[None, :]
        acc += tl.load(sums + at, mask=here[:, None] & (e < embed)[None, :], other=0.0)
    weight = tl.sum(total, 0)
    mean = tl.div_rn(tl.sum(acc, 0), weight + eps)  # a plain division is off by up to 2 units in the last place
    tl.store(pooled + row.to(tl.int64) * embed + e, mean.to(pooled.dtype.element_ty), mask=e < embed)
    if span == 0:
        tl.store(mass + row, tl.div_rn(weight, weight + eps).to(mass.dtype.element_ty))
        tl.store(totals + row, weight + eps)


def _pool_tiles(dtype: str, sm: int) -> dict[int, Tile]:
    """Weights are reread for each span of channels, so spans are as wide as registers allow."""
    if dtype == "fp32":
        return {0: Tile({"BLOCK_T": 32, "BLOCK_E": 128})}
    return {0: Tile({"BLOCK_T": 32, "BLOCK_E": 256}, warps=8)}


KERNELS = (
    Kernel(
        "pool",
        pool,
        {"weights": "*fp32", "x": "*T", "sums": "*fp32", "masses": "*fp32"}
        | dict.fromkeys(("tokens", "heads", "embed", "runs", "run_tiles"), "i32"),
        _pool_tiles,
        {"embed": 8},
        product=True,
    ),
    Kernel(
        "combine",
        combine,
        {"sums": "*fp32", "masses": "*fp32", "pooled": "*T", "mass": "*T", "totals": "*fp32"}
        | {"heads": "i32", "embed": "i32", "runs": "i32", "eps": "fp32"},
        same_for_all(BLOCK_R=16, BLOCK_E=64),
    ),
)
