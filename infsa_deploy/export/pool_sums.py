"""EnergyPool and CentralityPool as sums over tiles of tokens: the same definitions, the division done last.

Both are `pooled = sum_n w_n x_n / (sum_n w_n + eps)` and `mass = sum_n w_n / (sum_n w_n + eps)`; see the ops.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from infsa_deploy.export.node_list import NodeList

FLOAT = ir.DataType.FLOAT


class PoolSums:
    """One pooling node taken apart.

    Args:
        node: an EnergyPool whose query width is known, or a CentralityPool.
        before: receives what is computed once, before the first tile.
    """

    def __init__(self, node: ir.Node, before: NodeList) -> None:
        self._node = node
        self._columns = self._offset = None
        if node.op_type == "CentralityPool":
            self._columns = before.add("Transpose", _wide(before, node.inputs[1]), perm=[0, 2, 1])  # B E H
            self._offset = before.add("Unsqueeze", _wide(before, node.inputs[2]), before.ints(1))  # B 1 H

    @property
    def zeros(self) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], ...]:
        """Start values of the sums of w [B, H] and of w x [B, H, E]; they broadcast to full size."""
        return np.zeros((1, 1), np.float32), np.zeros((1, 1, 1), np.float32)

    def of_tile(self, body: NodeList, tokens: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The sums over one tile; tokens are the node's token inputs, [B, n, ...]."""
        x = _wide(body, tokens[-1])
        weights = self._scores(body, x) if self._columns is not None else self._energies(body, tokens[0])  # B n H
        total = body.add("ReduceSum", weights, body.ints(1), keepdims=0)  # B H
        return total, body.add("MatMul", body.add("Transpose", weights, perm=[0, 2, 1]), x)  # B H E

    def finish(self, after: NodeList, total: ir.Value, weighted: ir.Value) -> tuple[ir.Value, ir.Value]:
        """pooled [B, H, E] and mass [B, H], in the node's type, from the sums over all tokens."""
        eps = self._node.attributes["eps"].as_float() * self._width() ** 0.5
        divisor = after.add("Add", total, after.constant(np.array(eps, np.float32)))
        pooled = after.add("Div", weighted, after.add("Unsqueeze", divisor, after.ints(2)))
        mass = after.add("Div", total, divisor)
        kind = self._node.outputs[0].dtype
        if kind is None or kind == FLOAT:
            return pooled, mass
        narrow = [after.add("Cast", value, dtype=kind, to=kind.value) for value in (pooled, mass)]
        return narrow[0], narrow[1]

    def _width(self) -> int:
        """Channels a head: energies are summed without their common factor 1 / sqrt(D)."""
        q = self._node.inputs[0]
        if self._columns is not None or q is None or q.shape is None:
            return 1
        width = q.shape[-1]
        assert isinstance(width, int)
        return width // self._node.attributes["heads"].as_int()

    def _energies(self, body: NodeList, q: ir.Value) -> ir.Value:
        split = body.ints(0, 0, self._node.attributes["heads"].as_int(), -1)
        by_head = body.add("Reshape", _wide(body, q), split)  # B n H D
        return body.add("ReduceL2", by_head, body.ints(3), keepdims=0)

    def _scores(self, body: NodeList, x: ir.Value) -> ir.Value:
        return body.add("Relu", body.add("Add", body.add("MatMul", x, self._columns), self._offset))


def _wide(nodes: NodeList, value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value if value.dtype == FLOAT else nodes.add("Cast", value, dtype=FLOAT, to=FLOAT.value)
