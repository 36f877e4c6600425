"""NeumannAttention on a GPU: y <- rho A (v + y), A = relu(q k^T / D) / (||.||_F + eps), without A in memory.

Four kernels, all deterministic (no atomics):

1. `bound_keys`   the largest key norm of each block of tokens. Only for float16, see `row_shift`.
2. `attend`       u = S v and the sums of squares of S, one block of queries a program, keys streamed.
3. `normalise`    scale = rho / (||S||_F + eps) from the sums of squares, and the first hop y = scale u.
4. `hop`          y = scale (u + S y'), once for each further hop.

S v is kept in float32 between hops, so a hop only needs S times the previous y: the y that is rounded to the I/O
type is the one that would be the answer were the series cut there, and never overflows sooner than the answer does.
Where only the first `rows` tokens are asked for, the last hop computes the blocks of queries that hold them; with one
hop that is `attend`, compiled again as `attend_cut`, whose other blocks only sum squares.
In float32 (SPANS) `attend` and `hop` are launched once for each span of keys, and add to what the span before left: one
sum over all keys would be rounded once for each tile of them, which at 331776 keys errs 5 times as much as eager.
Tokens lie `width = 3 H D` apart in qkv and `H D` apart in y, u; every index into a tensor is 64 bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import triton
import triton.language as tl

from infsa_plugins.kernels import Kernel, Tile, same_for_all
from infsa_plugins.precision import product


@triton.jit
def bound_keys(qkv, bounds, tokens, heads, head_dim, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    """bounds[b h, block] = max over the block of ||k||, float32; grid (B H blocks)."""
    blocks = tl.cdiv(tokens, BLOCK_T)
    pid = tl.program_id(0)
    head = (pid // blocks) % heads
    batch = (pid // blocks) // heads
    width = 3 * heads * head_dim
    t = (pid % blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    keys = qkv + batch.to(tl.int64) * tokens * width + (heads + head) * head_dim
    inside = (t < tokens)[:, None] & (d < head_dim)[None, :]
    k = tl.load(keys + t.to(tl.int64)[:, None] * width + d[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(bounds + pid, tl.sqrt(tl.max(tl.sum(k * k, 1), 0)))


@triton.jit
def row_shift(q, bounds, blocks, BLOCK_B: tl.constexpr):
    """Powers of two that bring every q_i . k_j of the head to at most 2^15, so that S fits float16 and stays normal.

    By Cauchy-Schwarz |q_i . k_j| <= ||q_i|| max ||k||. The power also keeps ||q_i|| itself below 2^15. It is applied
    to q before the product, at no cost in the loop, and is exact but for elements 2^14 below their row's norm.
    """
    largest = tl.zeros((BLOCK_B,), tl.float32)
    for start in range(0, blocks, BLOCK_B):
        b = start + tl.arange(0, BLOCK_B)
        largest = tl.maximum(largest, tl.load(bounds + b, mask=b < blocks, other=0.0))
    key_norm = tl.max(largest, 0)
    wide = q.to(tl.float32)
    norm = tl.sqrt(tl.sum(wide * wide, 1))
    top = tl.maximum(tl.maximum(norm, norm * key_norm), 1e-18)  # a row of zeros needs no shift: keep 2^m finite
    exponent = top.to(tl.int32, bitcast=True) >> 23  # 127 + floor(log2(top)); top is positive
    return ((127 + 14 + 127 - exponent) << 23).to(tl.float32, bitcast=True)  # 2^(14 - floor(log2(top)))


@triton.jit
def load_rows(base, start, tokens, stride, head_dim, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows start .. start + ROWS of a [tokens, stride] matrix, zero beyond the last token and channel."""
    r = tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    inside = (r < tokens - start)[:, None] & (d < head_dim)[None, :]
    return tl.load(base + tl.cast(start, tl.int64) * stride + r[:, None] * stride + d[None, :], mask=inside, other=0.0)


@triton.jit
def affinity(q, k):
    """relu(q k^T) in float32, not yet divided by D; a NaN stays a NaN."""
    s = product(q, tl.trans(k), tl.zeros((q.shape[0], k.shape[0]), tl.float32))
    return tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def attend(
    qkv, bounds, u, squares, tokens, rows, heads, head_dim, bound_blocks, begin, end,
    CUT: tl.constexpr, SHIFT: tl.constexpr, SPANS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """u = the first rows of relu(q k^T / D) v, float32 [B, rows, H D]; squares[b h, block] = sum of S^2, all its rows.

    Without CUT rows is N. With SPANS only keys begin .. end are used, and from the second span on both are added to.
    Grid (B H ceil(N / BLOCK_M)).
    """
    if not SPANS:
        begin = 0
        end = tokens
    blocks = tl.cdiv(tokens, BLOCK_M)
    pid = tl.program_id(0)
    first = (pid % blocks) * BLOCK_M
    group = pid // blocks
    head = group % heads
    width = 3 * heads * head_dim
    base = qkv + (group // heads).to(tl.int64) * tokens * width + head * head_dim
    q = load_rows(base, first, tokens, width, head_dim, BLOCK_M, BLOCK_D)
    unit = tl.full((BLOCK_M,), 1.0, tl.float32) / head_dim
    if SHIFT:
        shift = row_shift(q, bounds + group * bound_blocks, bound_blocks, 128)
        q = (q.to(tl.float32) * shift[:, None]).to(q.dtype)
        unit = unit / shift
    total = tl.zeros((BLOCK_M,), tl.float32)
    if not CUT or first < rows:
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for start in range(begin, end, BLOCK_N):
            k = load_rows(base + heads * head_dim, start, end, width, head_dim, BLOCK_N, BLOCK_D)
            s = affinity(q, k)
            total += tl.sum(s * s, 1)
            v = load_rows(base + 2 * heads * head_dim, start, end, width, head_dim, BLOCK_N, BLOCK_D)
            acc = product(s.to(v.dtype), v, acc)
        m = first + tl.arange(0, BLOCK_M)
        d = tl.arange(0, BLOCK_D)
        inside = (m < rows)[:, None] & (d < head_dim)[None, :]
        out = u + (group // heads).to(tl.int64) * rows * heads * head_dim + head * head_dim
        out += m.to(tl.int64)[:, None] * (heads * head_dim) + d[None, :]
        acc = acc * unit[:, None]
        if SPANS:
            earlier = (m < rows * tl.minimum(begin, 1))[:, None]  # no row in the first span; a branch would spill
            acc += tl.load(out, mask=inside & earlier, other=0.0)
        tl.store(out, acc, mask=inside)
    else:
        for start in range(begin, end, BLOCK_N):
            k = load_rows(base + heads * head_dim, start, end, width, head_dim, BLOCK_N, BLOCK_D)
            s = affinity(q, k)
            total += tl.sum(s * s, 1)
    square = tl.sum(total * unit * unit, 0)
    if SPANS:  # noqa: SIM102 (decided when compiled)
        if begin > 0:
            square += tl.load(squares + pid)
    tl.store(squares + pid, square)


@triton.jit
def normalise(
    u, squares, scales, y, rows, heads, head_dim, square_blocks, rho, eps,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """scales[b h] = rho / (||S||_F + eps), float32; y = scale u, [B, rows, H D] in the I/O type.

    Grid (B H ceil(rows / BLOCK_T)).
    """
    blocks = tl.cdiv(rows, BLOCK_T)
    pid = tl.program_id(0)
    group = pid // blocks
    sums = tl.zeros((256,), tl.float32)
    for start in range(0, square_blocks, 256):
        i = start + tl.arange(0, 256)
        sums += tl.load(squares + group * square_blocks + i, mask=i < square_blocks, other=0.0)
    scale = tl.div_rn(rho, tl.sqrt_rn(tl.sum(sums, 0)) + eps)
    if pid % blocks == 0:
        tl.store(scales + group, scale)
    t = (pid % blocks) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    inside = (t < rows)[:, None] & (d < head_dim)[None, :]
    width = heads * head_dim
    at = ((group // heads).to(tl.int64) * rows + t)[:, None] * width + (group % heads) * head_dim + d[None, :]
    tl.store(y + at, (scale * tl.load(u + at, mask=inside, other=0.0)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def hop(
    qkv, bounds, u, scales, previous, y, tokens, rows, heads, head_dim, bound_blocks, begin, end,
    SHIFT: tl.constexpr, SPANS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """y = the first rows of scale (u + S previous), [B, rows, H D] as previous [B, N, H D] in the I/O type.

    With SPANS only keys begin .. end are used, and y holds u + S previous until the last span.
    Grid (B H ceil(rows / BLOCK_M)).
    """
    if not SPANS:
        begin = 0
        end = tokens
    blocks = tl.cdiv(rows, BLOCK_M)
    pid = tl.program_id(0)
    first = (pid % blocks) * BLOCK_M
    group = pid // blocks
    head = group % heads
    width = 3 * heads * head_dim
    base = qkv + (group // heads).to(tl.int64) * tokens * width + head * head_dim
    at_head = (group // heads).to(tl.int64) * tokens * heads * head_dim + head * head_dim
    q = load_rows(base, first, tokens, width, head_dim, BLOCK_M, BLOCK_D)
    unit = tl.full((BLOCK_M,), 1.0, tl.float32) / head_dim
    if SHIFT:
        shift = row_shift(q, bounds + group * bound_blocks, bound_blocks, 128)
        q = (q.to(tl.float32) * shift[:, None]).to(q.dtype)
        unit = unit / shift
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(begin, end, BLOCK_N):
        k = load_rows(base + heads * head_dim, start, end, width, head_dim, BLOCK_N, BLOCK_D)
        s = affinity(q, k)
        z = load_rows(previous + at_head, start, end, heads * head_dim, head_dim, BLOCK_N, BLOCK_D)
        acc = product(s.to(z.dtype), z, acc)
    m = first + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    inside = (m < rows)[:, None] & (d < head_dim)[None, :]
    at = at_head + m.to(tl.int64)[:, None] * (heads * head_dim) + d[None, :]
    sum_v = tl.load(u + at, mask=inside, other=0.0)
    scale = tl.load(scales + group)
    y += (group // heads).to(tl.int64) * (rows - tokens) * heads * head_dim  # `at` counts `tokens` rows a batch
    if SPANS:
        if begin > 0:
            sum_v = tl.load(y + at, mask=inside, other=0.0)
        if end < tokens:
            scale = 1.0
    tl.store(y + at, (scale * (sum_v + acc * unit[:, None])).to(y.dtype.element_ty), mask=inside)


def _tiles(dtype: str, sm: int) -> dict[int, Tile]:
    """By head dimension.

    A program reads 2 BLOCK_N D elements for 4 BLOCK_M BLOCK_N D operations, so BLOCK_M sets the intensity: 128 queries
    give 128 operations a byte in half precision, beyond what an L2 cache needs. 128 x 128 scores spill on SM 80. The
    three parts of a float32 operand halve the tile; 64 x 16 is the least that SM 90's tensor cores take.
    """
    shift = {"SHIFT": dtype == "fp16", "SPANS": dtype == "fp32"}
    if dtype == "fp32":
        wide = {"BLOCK_M": 64, "BLOCK_N": 16} if sm == 90 else {"BLOCK_M": 32, "BLOCK_N": 32}
        return {
            32: Tile({"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_D": 32} | shift, 4, 2),
            64: Tile({"BLOCK_M": 128, "BLOCK_N": 32, "BLOCK_D": 64} | shift, 8, 2),
            128: Tile(wide | {"BLOCK_D": 128} | shift, 4 if sm == 90 else 8, 2),
        }
    return {
        32: Tile({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_D": 32} | shift, 4, 3),
        64: Tile({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_D": 64} | shift, 4, 3),
        128: Tile({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_D": 128} | shift, 8, 2),
    }


def _attend_tiles(cut: bool) -> Callable[[str, int], Mapping[int, Tile]]:
    """Two loops in one kernel take more registers: the widest float32 tile would spill on SM 80."""

    def tiles(dtype: str, sm: int) -> Mapping[int, Tile]:
        found = {
            limit: replace(tile, constants={"CUT": cut, **tile.constants}) for limit, tile in _tiles(dtype, sm).items()
        }
        if cut and dtype == "fp32" and sm != 90:
            found[128] = replace(found[128], constants={**found[128].constants, "BLOCK_N": 16})
        return found

    return tiles


_SIZES = dict.fromkeys(("tokens", "heads", "head_dim"), "i32")
_CUT_SIZES = dict.fromkeys(("tokens", "rows", "heads", "head_dim"), "i32")

KERNELS = (
    Kernel(
        "bound_keys",
        bound_keys,
        {"qkv": "*T", "bounds": "*fp32"} | _SIZES,
        same_for_all(BLOCK_T=128, BLOCK_D=128),
        {"head_dim": 8},
        ("fp16",),
    ),
    *(
        Kernel(
            name,
            attend,
            {"qkv": "*T", "bounds": "*fp32", "u": "*fp32", "squares": "*fp32"}
            | _CUT_SIZES
            | dict.fromkeys(("bound_blocks", "begin", "end"), "i32"),
            _attend_tiles(cut),
            {"head_dim": 8},
            product=True,
        )
        for name, cut in (("attend", False), ("attend_cut", True))
    ),
    Kernel(
        "normalise",
        normalise,
        {"u": "*fp32", "squares": "*fp32", "scales": "*fp32", "y": "*T"}
        | dict.fromkeys(("rows", "heads", "head_dim", "square_blocks"), "i32")
        | {"rho": "fp32", "eps": "fp32"},
        same_for_all(BLOCK_T=64, BLOCK_D=128),
        {"head_dim": 8},
    ),
    Kernel(
        "hop",
        hop,
        {"qkv": "*T", "bounds": "*fp32", "u": "*fp32", "scales": "*fp32", "previous": "*T", "y": "*T"}
        | _CUT_SIZES
        | dict.fromkeys(("bound_blocks", "begin", "end"), "i32"),
        _tiles,
        {"head_dim": 8},
        product=True,
    ),
)
