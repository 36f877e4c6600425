"""CentralityPool on a GPU: one pass over x, scores and pooling from the same tile, then `combine` of pooling.py.

A tile of whole tokens must fit an SM, which it does up to 1024 channels in half precision and 256 in float32. Longer
tokens take `score` and `pool` of pooling.py instead, which read x once each.
"""

import triton
import triton.language as tl

from infsa_plugins.kernels import Kernel, Tile, same_for_all
from infsa_plugins.pooling import HEADS, load_tile, store_partial
from infsa_plugins.precision import product, weighted_product


@triton.jit
def load_queries(u, heads, embed, first_head, first, BLOCK_E: tl.constexpr):
    """Channels first .. first + BLOCK_E of 16 pooled queries, zero where there is no head or channel."""
    h = first_head + tl.arange(0, HEADS)
    e = first + tl.arange(0, BLOCK_E)
    return tl.load(u + h[:, None] * embed + e[None, :], mask=(h < heads)[:, None] & (e < embed)[None, :], other=0.0)


@triton.jit
def relu_score(s, c, h, t, heads, left):
    """relu(s + c) for s [16, T], c [16]; zero beyond the last token, where x . u is zero but relu(c) is not."""
    r = tl.maximum(s + c[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((h < heads)[:, None] & (t < left)[None, :], r, 0.0)


@triton.jit
def score_and_pool(
    x, u, c, sums, masses, scores, tokens, heads, embed, runs, run_tiles, keep_scores,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The sums of r x and of r, r = relu(x . u + c), over one run of tiles of whole tokens, embed <= BLOCK_E * CHUNKS.

    Results as `pool` of pooling.py. With keep_scores, r itself goes to scores [B, H, N] float32.
    grid (runs * head groups * B).
    """
    groups = tl.cdiv(heads, HEADS)
    pid = tl.program_id(0)
    run = pid % runs
    batch = (pid // runs // groups).to(tl.int64)
    first_head = (pid // runs % groups) * HEADS
    x += batch * tokens * embed
    u += batch * heads * embed
    h = first_head + tl.arange(0, HEADS)
    t = tl.arange(0, BLOCK_T)
    offset = tl.load(c + batch * heads + h, mask=h < heads, other=0.0).to(tl.float32)
    acc = ()
    for _ in tl.static_range(CHUNKS):
        acc = acc + (tl.zeros((HEADS, BLOCK_E), tl.float32),)  # noqa: RUF005 (Triton does not unpack)
    total = tl.zeros((HEADS,), tl.float32)
    end = tl.minimum((run + 1) * run_tiles * BLOCK_T, tokens)
    for start in range(run * run_tiles * BLOCK_T, end, BLOCK_T):
        rows = x + tl.cast(start, tl.int64) * embed
        s = tl.zeros((HEADS, BLOCK_T), tl.float32)
        tiles = ()
        for i in tl.static_range(CHUNKS):
            tiles = tiles + (load_tile(rows, start, tokens, embed, i * BLOCK_E, BLOCK_T, BLOCK_E),)  # noqa: RUF005
            query = load_queries(u, heads, embed, first_head, i * BLOCK_E, BLOCK_E)
            s = product(query, tl.trans(tiles[i]), s)
        r = relu_score(s, offset, h, t, heads, tokens - start)
        total += tl.sum(r, 1)
        if keep_scores:
            at = (batch * heads + h)[:, None] * tokens + start + t[None, :]
            tl.store(scores + at, r, mask=(h < heads)[:, None] & (t < tokens - start)[None, :])
        done = ()
        for i in tl.static_range(CHUNKS):
            done = done + (weighted_product(r, tiles[i], acc[i]),)  # noqa: RUF005
        acc = done
    for i in tl.static_range(CHUNKS):
        store_partial(sums, acc[i], pid, embed, i * BLOCK_E, BLOCK_E)
    tl.store(masses + pid * HEADS + tl.arange(0, HEADS), total)


@triton.jit
def score(x, u, c, scores, tokens, heads, embed, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr):
    """scores [B, H, N] = relu(x . u + c), float32, for tokens of any length; grid (token blocks * head groups * B)."""
    blocks = tl.cdiv(tokens, BLOCK_T)
    groups = tl.cdiv(heads, HEADS)
    pid = tl.program_id(0)
    start = (pid % blocks) * BLOCK_T
    batch = (pid // blocks // groups).to(tl.int64)
    first_head = (pid // blocks % groups) * HEADS
    h = first_head + tl.arange(0, HEADS)
    t = tl.arange(0, BLOCK_T)
    rows = x + (batch * tokens + start) * embed
    s = tl.zeros((HEADS, BLOCK_T), tl.float32)
    for first in range(0, embed, BLOCK_E):
        query = load_queries(u + batch * heads * embed, heads, embed, first_head, first, BLOCK_E)
        tile = load_tile(rows, start, tokens, embed, first, BLOCK_T, BLOCK_E)
        s = product(query, tl.trans(tile), s)
    offset = tl.load(c + batch * heads + h, mask=h < heads, other=0.0).to(tl.float32)
    r = relu_score(s, offset, h, t, heads, tokens - start)
    at = (batch * heads + h)[:, None] * tokens + start + t[None, :]
    tl.store(scores + at, r, mask=(h < heads)[:, None] & (t < tokens - start)[None, :])


@triton.jit
def centralities(scores, totals, centrality, tokens, BLOCK_T: tl.constexpr):
    """centrality [B, H, N] = scores / totals[b h] in the I/O type; grid (token blocks * B * H)."""
    blocks = tl.cdiv(tokens, BLOCK_T)
    row = tl.program_id(0) // blocks
    t = (tl.program_id(0) % blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
    at = row.to(tl.int64) * tokens + t
    share = tl.div_rn(tl.load(scores + at, mask=t < tokens, other=0.0), tl.load(totals + row))
    tl.store(centrality + at, share.to(centrality.dtype.element_ty), mask=t < tokens)


def _tiles(dtype: str, sm: int) -> dict[int, Tile]:
    """By channels of a token.

    The accumulators take 16 E registers and a tile of tokens is copied twice over, so 8 warps from 512 channels on.
    The three parts of a float32 operand leave room for 256 channels only. From SM 90 on most larger tiles spill; the
    one on SM 90 that does not reads 2.0 TB/s on an H200, where 16 tokens a tile read 1.4.
    """
    if dtype == "fp32":
        return {256: Tile({"BLOCK_T": 32 if sm < 90 else 16, "BLOCK_E": 32, "CHUNKS": 8}, 4, 2)}
    widest = Tile({"BLOCK_T": 32 if sm == 80 else 16, "BLOCK_E": 128, "CHUNKS": 8}, 8, 2)
    if sm == 90:
        widest = Tile({"BLOCK_T": 32, "BLOCK_E": 256, "CHUNKS": 4}, 8, 3)
    return {
        256: Tile({"BLOCK_T": 32, "BLOCK_E": 128, "CHUNKS": 2}, 4, 3),
        512: Tile({"BLOCK_T": 32, "BLOCK_E": 128, "CHUNKS": 4}, 8, 2),
        1024: widest,
    }


KERNELS = (
    Kernel(
        "score_and_pool",
        score_and_pool,
        {"x": "*T", "u": "*T", "c": "*T", "sums": "*fp32", "masses": "*fp32", "scores": "*fp32"}
        | dict.fromkeys(("tokens", "heads", "embed", "runs", "run_tiles", "keep_scores"), "i32"),
        _tiles,
        {"embed": 8},
        product=True,
    ),
    Kernel(
        "score",
        score,
        {"x": "*T", "u": "*T", "c": "*T", "scores": "*fp32", "tokens": "i32", "heads": "i32", "embed": "i32"},
        same_for_all(BLOCK_T=64, BLOCK_E=64),
        {"embed": 8},
        product=True,
    ),
    Kernel(
        "centralities",
        centralities,
        {"scores": "*fp32", "totals": "*fp32", "centrality": "*T", "tokens": "i32"},
        same_for_all(BLOCK_T=1024),
    ),
)
