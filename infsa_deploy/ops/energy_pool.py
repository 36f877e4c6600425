"""EnergyPool: the mean of the tokens, weighted by the norm of each token's query.

Per batch element and head, with q_n: [D] the head's query and x_n: [E] the whole token:

    e_n    = ||q_n||_2 / sqrt(D)
    pooled = sum_n e_n x_n / (sum_n e_n + eps)
    mass   = sum_n e_n     / (sum_n e_n + eps)

The first half of linear InfSA after projection folding: the pooled query is Wq pooled + mass bq, so no other
projection of the tokens is needed. Source: arXiv:2603.00175, equation of the soft query summary, refactored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, no_type_check

import onnxscript
from onnxscript import FLOAT
from onnxscript import opset20 as op

from infsa_deploy.ops.contract import (
    DOMAIN,
    VERSION,
    AttributeSpec,
    Contract,
    Nodes,
    Op,
    PluginLimit,
    TensorSpec,
    TileWeights,
    accumulation_dtype,
)

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

CONTRACT = Contract(
    name="EnergyPool",
    inputs=(TensorSpec("q", ("B", "N", "H*D")), TensorSpec("x", ("B", "N", "E"))),
    attributes=(AttributeSpec("heads", "int", 1, 1024), AttributeSpec("eps", "float", 0.0, 1.0)),
    outputs=(TensorSpec("pooled", ("B", "H", "E")), TensorSpec("mass", ("B", "H"))),
    plugin_limits=(PluginLimit("D", 8), PluginLimit("E", 8)),
)


def _eager(q: torch.Tensor, x: torch.Tensor, heads: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    CONTRACT.check_attributes({"heads": heads, "eps": eps})
    B, N, width = q.shape
    D = width // heads
    wide = accumulation_dtype(x)
    energy = torch.linalg.vector_norm(q.to(wide).view(B, N, heads, D), dim=-1) / D**0.5  # B N H
    total = energy.sum(dim=1)  # B H
    pooled = energy.transpose(1, 2) @ x.to(wide) / (total + eps).unsqueeze(-1)  # B H E
    return pooled.to(x.dtype), (total / (total + eps)).to(x.dtype)


def _fake(q: torch.Tensor, x: torch.Tensor, heads: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    B, _, E = x.shape
    return x.new_empty(B, heads, E), x.new_empty(B, heads)


@onnxscript.script(onnxscript.values.Opset(DOMAIN, VERSION), default_opset=op)
@no_type_check
def EnergyPool(q, x, heads: int, eps: float):  # noqa: N802
    heads_1d = op.Reshape(op.Constant(value_int=heads), op.Constant(value_ints=[1]))
    split_shape = op.Concat(op.Constant(value_ints=[0, 0]), heads_1d, op.Constant(value_ints=[-1]), axis=0)
    by_head = op.Reshape(op.Cast(q, to=FLOAT.dtype), split_shape)  # B N H D
    D = op.Cast(op.Shape(by_head, start=3), to=FLOAT.dtype)
    energy = op.Div(op.ReduceL2(by_head, op.Constant(value_ints=[3]), keepdims=0), op.Sqrt(D))  # B N H
    weights = op.Transpose(energy, perm=[0, 2, 1])  # B H N
    # Along the last axis runtimes sum in several lanes; along another one after the other, which drifts with N.
    total = op.ReduceSum(weights, op.Constant(value_ints=[2]), keepdims=0)  # B H
    weight = op.Add(total, op.Constant(value_float=eps))
    weighted = op.MatMul(weights, op.Cast(x, to=FLOAT.dtype))  # B H E
    pooled = op.CastLike(op.Div(weighted, op.Unsqueeze(weight, op.Constant(value_ints=[2]))), x)
    mass = op.CastLike(op.Div(total, weight), x)
    return pooled, mass


def _flops(axes: Mapping[str, int], attributes: Mapping[str, float]) -> int:
    """Squares and sums of q, then one multiply-add a head and channel."""
    B, N, H, D, E = (axes[name] for name in "BNHDE")
    return 2 * B * N * H * D + 2 * B * N * H * E


def _workspace_bytes(axes: Mapping[str, int], attributes: Mapping[str, float]) -> int:
    """The energies, as they come and by head."""
    return 2 * 4 * axes["B"] * axes["N"] * axes["H"]


def _tile_weights(node: ir.Node, others: Sequence[ir.Value], once: Nodes) -> tuple[TileWeights, float]:
    """The norms of the queries, without their common factor 1 / sqrt(D)."""
    heads, width = node.attributes["heads"].as_int(), node.inputs[0].shape[-1]  # type: ignore[union-attr, index]

    def weights(tile: Nodes, tokens: Sequence[ir.Value]) -> ir.Value:
        by_head = tile.add("Reshape", tokens[0], tile.ints(0, 0, heads, -1))  # B n H D
        return tile.add("ReduceL2", by_head, tile.ints(3), keepdims=0)

    return weights, float(int(width) // heads) ** 0.5  # type: ignore[arg-type]


OP = Op(CONTRACT, _eager, _fake, EnergyPool, _flops, _workspace_bytes, _tile_weights)
