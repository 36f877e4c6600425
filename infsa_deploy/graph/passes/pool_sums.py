"""A pooling op as sums over tiles of tokens: the same definition, the division done last."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from infsa_deploy.graph.edit import NodeList
from infsa_deploy.ops import Op

FLOAT = ir.DataType.FLOAT


class PoolSums:
    """One pooling node taken apart.

    Args:
        op: what the node is; it has `tile_weights`.
        node: its token inputs have a static width.
        once: receives what is computed once, before the first tile.
    """

    def __init__(self, op: Op, node: ir.Node, once: NodeList) -> None:
        assert op.tile_weights is not None
        self._node = node
        others = [v for n, v in enumerate(node.inputs) if v is not None and n not in op.contract.token_inputs]
        self._weights, self._scale = op.tile_weights(node, [_cast(once, value, FLOAT) for value in others], once)

    @property
    def zeros(self) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...]:
        """Start values of the sums of w [B, H] and of w x [B, H, E]; they broadcast to full size."""
        return np.zeros((1, 1), np.float32), np.zeros((1, 1, 1), np.float32)

    def of_tile(self, body: NodeList, tokens: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The sums over one tile; tokens are the node's token inputs, [B, n, ...], the last of them x."""
        wide = [_cast(body, value, FLOAT) for value in tokens]
        weights = self._weights(body, wide)  # B n H
        total = body.add("ReduceSum", weights, body.ints(1), keepdims=0)  # B H
        return total, body.add("MatMul", body.add("Transpose", weights, perm=[0, 2, 1]), wide[-1])  # B H E

    def finish(self, after: NodeList, total: ir.Value, weighted: ir.Value) -> tuple[ir.Value, ir.Value]:
        """pooled [B, H, E] and mass [B, H], in the node's type, from the sums over all tokens."""
        eps = self._node.attributes["eps"].as_float() * self._scale
        divisor = after.add("Add", total, after.constant(np.array(eps, np.float32)))
        pooled = after.add("Div", weighted, after.add("Unsqueeze", divisor, after.ints(2)))
        kind = self._node.outputs[0].dtype or FLOAT
        return _cast(after, pooled, kind), _cast(after, after.add("Div", total, divisor), kind)


def _cast(nodes: NodeList, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    return value if value.dtype == dtype else nodes.add("Cast", value, dtype=dtype, to=dtype.value)
