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
from typing import no_type_check

import onnxscript
import torch
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
    register,
)

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


@onnxscript.script(onnxscript.values.Opset(DOMAIN, VERSION), default_opset=op)
@no_type_check
def NeumannAttention(qkv, heads: int, rho: float, hops: int, eps: float, rows: int = 0):  # noqa: N802
    one = op.Constant(value_ints=[1])
    heads_1d = op.Reshape(op.Constant(value_int=heads), one)
    split_shape = op.Concat(op.Constant(value_ints=[0, 0, 3]), heads_1d, op.Constant(value_ints=[-1]), axis=0)
    packed = op.Transpose(op.Reshape(op.Cast(qkv, to=FLOAT.dtype), split_shape), perm=[2, 0, 3, 1, 4])  # 3 B H N D
    q3, k3, v3 = op.Split(packed, num_outputs=3, axis=0)
    q = op.Squeeze(q3, op.Constant(value_ints=[0]))
    k = op.Squeeze(k3, op.Constant(value_ints=[0]))
    v = op.Squeeze(v3, op.Constant(value_ints=[0]))
    tokens = op.Shape(q, start=2, end=3)  # [N]
    channels = op.Shape(q, start=3)  # [D]
    D = op.Cast(channels, to=FLOAT.dtype)
    q = op.Div(q, D)
    asked = op.Reshape(op.Constant(value_int=rows), one)
    cut = op.Greater(asked, op.Constant(value_ints=[0]))
    kept = op.Where(cut, op.Min(asked, tokens), tokens)  # [1], rows of y
    token_axis = op.Constant(value_ints=[2])
    elements = op.Div(op.Mul(op.Size(q), tokens), channels)  # of S: B H N N
    small = op.LessOrEqual(elements, op.Constant(value_ints=[WHOLE_ELEMENTS]))
    several = op.Greater(op.Constant(value_int=hops), op.Constant(value_int=1))
    if op.Squeeze(op.Or(small, several)):
        S = op.Relu(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])))  # B H N N
        row_squares = op.ReduceSumSquare(S, op.Constant(value_ints=[3]))  # in two stages, as in eager
        squares = op.ReduceSum(row_squares, token_axis)  # B H 1 1
        scale = op.Div(op.Constant(value_float=rho), op.Add(op.Sqrt(squares), op.Constant(value_float=eps)))
        z = op.Identity(v)
        more = op.Sub(op.Constant(value_int=hops), op.Constant(value_int=1))
        for _ in range(more):
            z = op.Add(v, op.Mul(scale, op.MatMul(S, z)))
        if op.Squeeze(cut):  # without a cut the slice would be a copy of S
            u = op.MatMul(op.Slice(S, op.Constant(value_ints=[0]), kept, token_axis), z)
        else:
            u = op.MatMul(S, z)
        y = op.Mul(scale, u)
    else:
        least = op.Constant(value_ints=[TILE_ROWS])
        fit = op.Max(op.Div(op.Constant(value_ints=[TILE_ELEMENTS]), tokens), least)  # rows of a tile
        tiles = op.Div(op.Sub(op.Add(kept, fit), one), fit)  # T
        tile_rows = op.Div(op.Sub(op.Add(kept, tiles), one), tiles)  # R
        others = op.Max(op.Sub(tokens, kept), one)  # rows that only the norm needs, or one of zeros
        other_tiles = op.Div(op.Sub(op.Add(others, fit), one), fit)
        other_tile_rows = op.Div(op.Sub(op.Add(others, other_tiles), one), other_tiles)
        other_missing = op.Sub(op.Mul(other_tiles, other_tile_rows), op.Sub(tokens, kept))
        shape = op.Concat(tiles, tile_rows, channels, axis=0)
        other_shape = op.Concat(other_tiles, other_tile_rows, channels, axis=0)

        @graph()
        def of_head(q_head, q_other_head, k_head, v_head):
            k_columns = op.Transpose(k_head, perm=[1, 0])

            @graph()
            def of_tile(q_tile):
                S_tile = op.Relu(op.MatMul(q_tile, k_columns))  # R N
                return op.MatMul(S_tile, v_head), op.ReduceSum(op.Mul(S_tile, S_tile), one, keepdims=0)

            @graph()
            def of_other_tile(q_other_tile):
                S_other = op.Relu(op.MatMul(q_other_tile, k_columns))
                return op.ReduceSum(op.Mul(S_other, S_other), one, keepdims=0)

            u_tiles, row_squares_tiles = op.Scan(op.Reshape(q_head, shape), body=of_tile, num_scan_inputs=1)
            other_squares = op.Scan(op.Reshape(q_other_head, other_shape), body=of_other_tile, num_scan_inputs=1)
            squares_head = op.ReduceSum(row_squares_tiles, keepdims=0)
            return u_tiles, op.Add(squares_head, op.ReduceSum(other_squares, keepdims=0))

        by_head = op.Concat(op.Constant(value_ints=[-1]), tokens, channels, axis=0)  # B*H N D
        zero = op.Constant(value_ints=[0])
        q_heads = op.Reshape(q, by_head)
        after = op.Sub(op.Mul(tiles, tile_rows), tokens)  # a negative pad takes rows away
        q_first = op.Pad(q_heads, op.Concat(zero, after, axis=0), None, one)
        q_other = op.Pad(q_heads, op.Concat(op.Neg(kept), other_missing, axis=0), None, one)
        u_heads, squares_heads = op.Scan(
            q_first, q_other, op.Reshape(k, by_head), op.Reshape(v, by_head), body=of_head, num_scan_inputs=4
        )  # B*H T R D and B*H
        padded = op.Concat(op.Shape(q, end=2), op.Constant(value_ints=[-1]), channels, axis=0)
        u = op.Slice(op.Reshape(u_heads, padded), zero, kept, token_axis)
        norms = op.Reshape(op.Sqrt(squares_heads), op.Concat(op.Shape(q, end=2), one, one, axis=0))
        y = op.Mul(op.Div(op.Constant(value_float=rho), op.Add(norms, op.Constant(value_float=eps))), u)
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


OP = Op(CONTRACT, register(CONTRACT, _eager, _fake), NeumannAttention, _flops, _workspace_bytes)
