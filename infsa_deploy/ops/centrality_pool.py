"""CentralityPool: the mean of the tokens, weighted by how well each answers its head's pooled query.

Per batch element and head, with x_n: [E] a token, u: [E] and c the pooled query seen through the key projection:

    r_n        = relu(x_n . u + c)
    pooled     = sum_n r_n x_n / (sum_n r_n + eps)
    mass       = sum_n r_n     / (sum_n r_n + eps)
    centrality = r_n           / (sum_n r_n + eps)

The second half of linear InfSA after projection folding: `centrality` is the attention vector itself, one step of
power iteration towards the dominant eigenvector of the affinity. Source: arXiv:2603.00175, refactored.
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
    name="CentralityPool",
    inputs=(
        TensorSpec("x", ("B", "N", "E")),
        TensorSpec("u", ("B", "H", "E")),
        TensorSpec("c", ("B", "H")),
    ),
    attributes=(AttributeSpec("eps", "float", 0.0, 1.0),),
    outputs=(
        TensorSpec("pooled", ("B", "H", "E")),
        TensorSpec("mass", ("B", "H")),
        TensorSpec("centrality", ("B", "H", "N"), optional=True),
    ),
    plugin_limits=(PluginLimit("E", 8),),
)


def _eager(
    x: torch.Tensor, u: torch.Tensor, c: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    CONTRACT.check_attributes({"eps": eps})
    wide = accumulation_dtype(x)
    tokens = x.to(wide)
    score = torch.relu(u.to(wide) @ tokens.transpose(1, 2) + c.to(wide).unsqueeze(-1))  # B H N
    total = score.sum(dim=-1, keepdim=True)  # B H 1
    weight = total + eps
    pooled = score @ tokens / weight  # B H E
    return pooled.to(x.dtype), (total / weight).squeeze(-1).to(x.dtype), (score / weight).to(x.dtype)


def _fake(
    x: torch.Tensor, u: torch.Tensor, c: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    B, H, E = u.shape
    return x.new_empty(B, H, E), x.new_empty(B, H), x.new_empty(B, H, x.shape[1])


@onnxscript.script(onnxscript.values.Opset(DOMAIN, VERSION), default_opset=op)
@no_type_check
def CentralityPool(x, u, c, eps: float):  # noqa: N802
    tokens = op.Cast(x, to=FLOAT.dtype)
    columns = op.Transpose(op.Cast(u, to=FLOAT.dtype), perm=[0, 2, 1])  # B E H
    offset = op.Unsqueeze(op.Cast(c, to=FLOAT.dtype), op.Constant(value_ints=[1]))  # B 1 H
    score = op.Transpose(op.Relu(op.Add(op.MatMul(tokens, columns), offset)), perm=[0, 2, 1])  # B H N
    total = op.ReduceSum(score, op.Constant(value_ints=[2]))  # B H 1
    weight = op.Add(total, op.Constant(value_float=eps))
    pooled = op.CastLike(op.Div(op.MatMul(score, tokens), weight), x)
    mass = op.CastLike(op.Squeeze(op.Div(total, weight), op.Constant(value_ints=[2])), x)
    centrality = op.CastLike(op.Div(score, weight), x)
    return pooled, mass, centrality


def _flops(axes: Mapping[str, int], attributes: Mapping[str, float]) -> int:
    """One dot product and one multiply-add a head and token, each E wide."""
    B, N, H, E = (axes[name] for name in "BNHE")
    return 4 * B * N * H * E


def _workspace_bytes(axes: Mapping[str, int], attributes: Mapping[str, float]) -> int:
    """The scores: as they come, shifted, and by head."""
    return 3 * 4 * axes["B"] * axes["N"] * axes["H"]


def _tile_weights(node: ir.Node, others: Sequence[ir.Value], once: Nodes) -> tuple[TileWeights, float]:
    """The scores of the tokens."""
    u, c = others
    columns = once.add("Transpose", u, perm=[0, 2, 1])  # B E H
    offset = once.add("Unsqueeze", c, once.ints(1))  # B 1 H

    def weights(tile: Nodes, tokens: Sequence[ir.Value]) -> ir.Value:
        return tile.add("Relu", tile.add("Add", tile.add("MatMul", tokens[0], columns), offset))

    return weights, 1.0


OP = Op(CONTRACT, _eager, _fake, CentralityPool, _flops, _workspace_bytes, _tile_weights)
