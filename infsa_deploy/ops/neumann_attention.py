"""NeumannAttention: attention as a truncated Neumann series of a Frobenius-normalised ReLU affinity.

Per batch element and head, with q, k, v: [N, D]:

    S = relu(q k^T / D)                     one affinity matrix
    A = S / (||S||_F + eps)                 spectral radius at most 1
    y = sum_{t=1..hops} rho^t A^t v         paths of up to `hops` steps, each step discounted by rho

evaluated by Horner's rule, y <- rho A (v + y), `hops` times from y = 0. The norm is one scalar a head, so it is
applied to the [N, D] product and never to the [N, N] matrix. With one hop nothing needs S again once its squares are
summed and S v is taken: the function body then walks S in tiles of rows that fit a CPU's cache, a head at a time.

With `rows` above 0 the output is only the first `rows` tokens of y. The norm and every hop but the last need all rows
of S; the last hop multiplies the first `rows` of them.
Source: arXiv:2603.00175.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, no_type_check

import onnxscript
from onnxscript import FLOAT, graph
from onnxscript import opset20 as op

from infsa_deploy.errors import UsageError
from infsa_deploy.ops.contract import (
    DOMAIN,
    VERSION,
    AttributeSpec,
    Contract,
    Op,
    PluginLimit,
    TensorSpec,
    accumulation_dtype,
)

if TYPE_CHECKING:
    import torch

CONTRACT = Contract(
    name="NeumannAttention",
    inputs=(TensorSpec("qkv", ("B", "N", "3*H*D")),),  # last axis = (q, k, v) x H x D
    attributes=(
        AttributeSpec("heads", "int", 1, 1024),
        AttributeSpec("rho", "float", 0.0, 1.0, above=True),
        AttributeSpec("hops", "int", 1, 1_000_000),
        AttributeSpec("eps", "float", 0.0, 1.0),
        AttributeSpec("rows", "int", 0, 1 << 30, default=0),
    ),
    outputs=(TensorSpec("y", ("B", "N", "H*D")),),  # N, or rows where that is above 0
    plugin_limits=(PluginLimit("D", 8, 128),),
)

WHOLE_ELEMENTS = 1 << 23  # of S over all heads: where one product for all of them beats a walk over tiles
TILE_ELEMENTS = 1 << 21  # of a tile of S, 8 MiB in float32
TILE_ROWS = 256  # of a tile at least: below, packing the keys for the product costs as much as it saves


def _eager(qkv: torch.Tensor, heads: int, rho: float, hops: int, eps: float, rows: int = 0) -> torch.Tensor:
    import torch

    CONTRACT.check_attributes({"heads": heads, "rho": rho, "hops": hops, "eps": eps, "rows": rows})
    B, N, packed = qkv.shape
    if rows > N:
        raise UsageError(f"NeumannAttention: rows={rows} of {N} tokens.", "", "pass at most the number of tokens.")
    D = packed // (3 * heads)
    q, k, v = qkv.to(accumulation_dtype(qkv)).view(B, N, 3, heads, D).permute(2, 0, 3, 1, 4)  # B H N D each
    S = torch.relu((q / D) @ k.transpose(-1, -2))  # B H N N
    row_norms = torch.linalg.vector_norm(S, dim=-1, keepdim=True)  # summed in two stages: one sum of N^2 loses digits
    scale = rho / (torch.linalg.vector_norm(row_norms, dim=-2, keepdim=True) + eps)  # B H 1 1
    z = v
    for _ in range(hops - 1):
        z = v + scale * (S @ z)
    y = scale * (S[:, :, : rows or N] @ z)
    merged: torch.Tensor = y.transpose(1, 2).reshape(B, rows or N, heads * D)
    return merged.to(qkv.dtype)


def _fake(qkv: torch.Tensor, heads: int, rho: float, hops: int, eps: float, rows: int = 0) -> torch.Tensor:
    B, N, packed = qkv.shape
    return qkv.new_empty(B, rows or N, packed // 3)


INFSA = onnxscript.values.Opset(DOMAIN, VERSION)


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def SplitHeads(qkv, heads):  # noqa: N802
    """Split qkv [B, N, 3*H*D] into q / D, k and v, each [B, H, N, D] in float32; heads: [1]."""
    by_head = op.Concat(op.Constant(value_ints=[0, 0, 3]), heads, op.Constant(value_ints=[-1]), axis=0)
    packed = op.Transpose(op.Reshape(op.Cast(qkv, to=FLOAT.dtype), by_head), perm=[2, 0, 3, 1, 4])  # 3 B H N D
    q3, k3, v3 = op.Split(packed, num_outputs=3, axis=0)
    q = op.Squeeze(q3, op.Constant(value_ints=[0]))
    k = op.Squeeze(k3, op.Constant(value_ints=[0]))
    v = op.Squeeze(v3, op.Constant(value_ints=[0]))
    return op.Div(q, op.Cast(op.Shape(q, start=3), to=FLOAT.dtype)), k, v


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def Whole(q, k, v, rows, rho, hops, eps):  # noqa: N802
    """Compute y [B, H, rows, D] of scaled q with S in one piece; rows: [1], 0 for all; rho, hops, eps: scalars."""
    token_axis = op.Constant(value_ints=[2])
    S = op.Relu(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])))  # B H N N
    row_squares = op.ReduceSumSquare(S, op.Constant(value_ints=[3]))  # in two stages, as in eager
    squares = op.ReduceSum(row_squares, token_axis)  # B H 1 1
    scale = op.Div(rho, op.Add(op.Sqrt(squares), eps))
    z = op.Identity(v)
    more = op.Sub(hops, op.Constant(value_int=1))
    for _ in range(more):
        z = op.Add(v, op.Mul(scale, op.MatMul(S, z)))
    cut = op.Greater(rows, op.Constant(value_ints=[0]))
    end = op.Where(cut, rows, op.Shape(S, start=2, end=3))  # the first branch serves both: engines take no other
    if op.Squeeze(cut):  # noqa: SIM108 - onnxscript has no conditional; without a cut the slice would be a copy of S
        u = op.MatMul(op.Slice(S, op.Constant(value_ints=[0]), end, token_axis), z)
    else:
        u = op.MatMul(S, z)
    return op.Mul(scale, u)


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def CutTiles(q, start, count, tile_elements, tile_rows):  # noqa: N802
    """Cut at least `count` rows of q [G, N, D] from `start` on into equal tiles [G, T, R, D].

    What is left of the last tile holds the rows that follow and, after row N, zeros. A tile of S has at most
    `tile_elements`, but at least `tile_rows` rows. All sizes: [1].
    """
    one = op.Constant(value_ints=[1])
    tokens = op.Shape(q, start=1, end=2)
    fit = op.Max(op.Div(tile_elements, tokens), tile_rows)
    tiles = op.Div(op.Sub(op.Add(count, fit), one), fit)  # T
    rows = op.Div(op.Sub(op.Add(count, tiles), one), tiles)  # R
    after = op.Sub(op.Mul(tiles, rows), op.Sub(tokens, start))  # a negative pad takes rows away
    padded = op.Pad(q, op.Concat(op.Neg(start), after, axis=0), None, one)
    return op.Reshape(padded, op.Concat(op.Constant(value_ints=[0]), tiles, rows, op.Shape(q, start=2), axis=0))


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def TiledHead(q_tiles, k_columns, v):  # noqa: N802
    """Compute S v [T, R, D] and the sum of S squared of one head, a tile [R, D] of q after the other; k: [D, N]."""

    @graph()
    def of_tile(q_tile):
        S = op.Relu(op.MatMul(q_tile, k_columns))  # R N
        return op.MatMul(S, v), op.ReduceSum(op.Mul(S, S), op.Constant(value_ints=[1]), keepdims=0)

    u, row_squares = op.Scan(q_tiles, body=of_tile, num_scan_inputs=1)
    return u, op.ReduceSum(row_squares, keepdims=0)


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def TailHead(q_tiles, k_columns):  # noqa: N802
    """Sum S squared of one head over the rows that the norm alone needs; as TiledHead, without the product by v."""

    @graph()
    def of_tile(q_tile):
        S = op.Relu(op.MatMul(q_tile, k_columns))  # R N
        return op.ReduceSum(op.Mul(S, S), op.Constant(value_ints=[1]), keepdims=0)

    row_squares = op.Scan(q_tiles, body=of_tile, num_scan_inputs=1)
    return op.ReduceSum(row_squares, keepdims=0)


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def Tiled(q, k, v, rows, rho, eps, tile_elements, tile_rows):  # noqa: N802
    """Compute y [B, H, rows, D] of scaled q for one hop, in tiles, a head at a time; rows: [1], 1 to N."""
    zero, one = op.Constant(value_ints=[0]), op.Constant(value_ints=[1])
    tokens = op.Shape(q, start=2, end=3)
    channels = op.Shape(q, start=3)
    by_head = op.Concat(op.Constant(value_ints=[-1]), tokens, channels, axis=0)  # B*H N D
    q_heads = op.Reshape(q, by_head)
    first = CutTiles(q_heads, zero, rows, tile_elements, tile_rows)
    in_tiles = op.ReduceProd(op.Shape(first, start=1, end=3), zero)  # the last tile may hold more than `rows`
    taken = op.Min(in_tiles, tokens)
    others = op.Max(op.Sub(tokens, taken), one)  # rows that only the norm needs, or one of zeros
    tail = CutTiles(q_heads, taken, others, tile_elements, tile_rows)

    @graph()
    def of_head(q_tiles, q_tail_tiles, k_head, v_head):
        k_columns = op.Transpose(k_head, perm=[1, 0])
        u_tiles, squares = TiledHead(q_tiles, k_columns, v_head)
        return u_tiles, op.Add(squares, TailHead(q_tail_tiles, k_columns))

    u_heads, squares_heads = op.Scan(
        first, tail, op.Reshape(k, by_head), op.Reshape(v, by_head), body=of_head, num_scan_inputs=4
    )  # B*H T R D and B*H
    padded = op.Concat(op.Shape(q, end=2), op.Constant(value_ints=[-1]), channels, axis=0)
    u = op.Slice(op.Reshape(u_heads, padded), zero, rows, op.Constant(value_ints=[2]))
    norms = op.Reshape(op.Sqrt(squares_heads), op.Concat(op.Shape(q, end=2), one, one, axis=0))
    return op.Mul(op.Div(rho, op.Add(norms, eps)), u)


@onnxscript.script(INFSA, default_opset=op)
@no_type_check
def NeumannAttention(qkv, heads: int, rho: float, hops: int, eps: float, rows: int = 0):  # noqa: N802
    one = op.Constant(value_ints=[1])
    heads_1d = op.Reshape(op.Constant(value_int=heads), one)
    q, k, v = SplitHeads(qkv, heads_1d)
    tokens = op.Shape(q, start=2, end=3)  # [N]
    channels = op.Shape(q, start=3)  # [D]
    asked = op.Reshape(op.Constant(value_int=rows), one)
    cut = op.Greater(asked, op.Constant(value_ints=[0]))
    elements = op.Div(op.Mul(op.Size(q), tokens), channels)  # of S: B H N N
    small = op.LessOrEqual(elements, op.Constant(value_ints=[WHOLE_ELEMENTS]))
    several = op.Greater(op.Constant(value_int=hops), op.Constant(value_int=1))
    scale, number, floor = op.Constant(value_float=rho), op.Constant(value_int=hops), op.Constant(value_float=eps)
    if op.Squeeze(op.Or(small, several)):
        y = Whole(q, k, v, asked, scale, number, floor)
    else:
        kept = op.Where(cut, op.Min(asked, tokens), tokens)  # [1], rows of y
        tile_elements, tile_rows = op.Constant(value_ints=[TILE_ELEMENTS]), op.Constant(value_ints=[TILE_ROWS])
        y = Tiled(q, k, v, kept, scale, floor, tile_elements, tile_rows)
    # All sizes spelled out, so that more rows than tokens fail here.
    asked_rows = op.Where(cut, asked, tokens)
    merged_shape = op.Concat(op.Shape(q, end=1), asked_rows, op.Mul(heads_1d, channels), axis=0)
    merged = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), merged_shape)
    return op.CastLike(merged, qkv)


def _flops(axes: Mapping[str, int], attributes: Mapping[str, float]) -> int:
    """q k^T once, then one product with [N, N] a hop, the last with [rows, N]; 2 operations a multiply-add."""
    rows = int(attributes.get("rows") or axes["N"])
    return 2 * axes["B"] * axes["H"] * axes["N"] * axes["D"] * (int(attributes["hops"]) * axes["N"] + rows)


def _workspace_bytes(axes: Mapping[str, int], attributes: Mapping[str, float]) -> int:
    """The affinity, whole and its first rows or a tile of it with its squares; q, k and v by head, q scaled, k^T."""
    B, H, N, D = (axes[name] for name in "BHND")
    whole = B * H * N * N
    if attributes["hops"] == 1 and whole > WHOLE_ELEMENTS:
        whole = 3 * (TILE_ELEMENTS + TILE_ROWS * N)
    else:
        whole += B * H * N * int(attributes.get("rows") or 0)
    return 4 * (whole + 6 * B * H * N * D)


OP = Op(CONTRACT, _eager, _fake, NeumannAttention, _flops, _workspace_bytes)
