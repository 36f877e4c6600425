"""Cut a graph into stages: the token-wise work between the points where tokens meet.

A stage computes one result from whole tensors, reading each of their rows once and independently of the others: a
token tensor that something reads whole, or the sums of a pooling op. Everything else in it exists for a few rows at
a time. A value that several stages want is made whole once, unless it is a cheap function of a single token tensor
(a normalisation): then each stage computes it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import onnx_ir as ir

from infsa_deploy.graph.passes.narrowed_shape import Dim, narrowed_shape
from infsa_deploy.graph.passes.token_axis import Carriers, carriers
from infsa_deploy.ops import OPS_BY_NAME
from infsa_deploy.ops.contract import DOMAIN, TOKEN_AXIS

_HEAVY = frozenset(["Einsum", "Gemm", "MatMul"])


@dataclass(frozen=True)
class Stage:
    """The nodes of a stage in order, and the node that ends it: the last of them, or a pooling op behind them."""

    end: ir.Node
    nodes: tuple[ir.Node, ...]

    @property
    def pools(self) -> bool:
        """Whether the stage ends in a pooling op."""
        return self.end.domain == DOMAIN


def find_stages(graph: ir.Graph, axes: dict[ir.Value, int]) -> list[Stage]:
    """The stages of a graph, front to back; those that only move data or do cheap arithmetic are left out."""
    return _Stages(graph, axes).find()


def token_axes(graph: ir.Graph, tile: int) -> dict[ir.Value, int]:
    """The token axis of every value that has one longer than `tile`, or of free length.

    Found from the inputs of `infsa` ops and from products with a weight matrix, along whatever treats tokens alike.
    """
    axes: dict[ir.Value, int] = {}
    work = deque(_seeds(graph))
    while work:
        value, axis = work.popleft()
        if value in axes or value.shape is None or not _long(value.shape[axis], tile):
            continue
        axes[value] = axis
        producer = value.producer()
        if producer is not None:
            found = row_wise(producer, axis) or ()
            work.extend((v, a) for v, a in zip(producer.inputs, found, strict=False) if v is not None and a is not None)
        for use in value.uses():
            output = use.node.outputs[0]
            for candidate in range(len(output.shape) if output.shape is not None else 0):
                found = row_wise(use.node, candidate) or ()
                if use.idx < len(found) and found[use.idx] == axis:
                    work.append((output, candidate))
                    break
    return axes


def row_wise(node: ir.Node, axis: int) -> Carriers | None:
    """As `token_axis.carriers`, for nodes that can run on however many rows arrive."""
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return None
    found = carriers(node, axis)
    if found is None or set(found) == {None}:
        return None
    if node.op_type in ("Reshape", "Expand") and narrowed_shape(node, axis, None) is None:
        return None
    return found


def _seeds(graph: ir.Graph) -> list[tuple[ir.Value, int]]:
    seeds = []
    for node in graph:
        if node.domain == DOMAIN:
            numbers = OPS_BY_NAME[node.op_type].contract.token_inputs
            seeds += [(value, TOKEN_AXIS) for n in numbers if (value := node.inputs[n]) is not None]
        elif node.op_type == "MatMul":
            rows, weight = node.inputs[0], node.inputs[1]
            constant = weight is not None and ir.convenience.get_const_tensor(weight) is not None
            known = rows is not None and rows.shape is not None and weight is not None and weight.shape is not None
            if constant and known and len(weight.shape) == 2 and len(rows.shape) > 2:  # type: ignore[union-attr, arg-type]
                seeds.append((rows, len(rows.shape) - 2))  # type: ignore[union-attr, arg-type]
    return seeds


def _long(length: Dim, tile: int) -> bool:
    return not isinstance(length, int) or length > tile


class _Stages:
    def __init__(self, graph: ir.Graph, axes: dict[ir.Value, int]) -> None:
        self._graph, self._axes = graph, axes
        self._ends: set[ir.Node] = set()
        self._whole: set[ir.Value] = set(graph.outputs)
        self._wanted: dict[ir.Value, set[ir.Node]] = {}

    def find(self) -> list[Stage]:
        for subgraph in self._graph.subgraphs():
            self._whole.update(value for node in subgraph for value in node.inputs if value is not None)
        for node in reversed(self._graph):
            self._visit(node)
        stages = [Stage(node, self._collect(node)) for node in self._graph if node in self._ends]
        return [stage for stage in stages if stage.pools or any(n.op_type in _HEAVY for n in stage.nodes)]

    def _visit(self, node: ir.Node) -> None:
        carried = self.carried(node)
        if carried is None:
            self._whole.update(value for value in node.inputs if value is not None)
            return
        output = node.outputs[0]
        stages = self._wanted.get(output, set())
        if node.domain == DOMAIN or output in self._whole or (len(stages) > 1 and not self._cheap(node, carried)):
            self._ends.add(node)
            stages = {node}
        for value, axis in zip(node.inputs, carried, strict=True):
            if value is not None and axis is not None:
                self._wanted.setdefault(value, set()).update(stages)
            elif value is not None:
                self._whole.add(value)

    def carried(self, node: ir.Node) -> Carriers | None:
        """The token axis of each input of a node that can be part of a stage; None for any other node."""
        if node.domain == DOMAIN:
            return self._pooled(node)
        axis = self._axes.get(node.outputs[0])
        found = row_wise(node, axis) if axis is not None else None
        if found is None:
            return None
        same = all(
            a is None or self._axes.get(v) == a for v, a in zip(node.inputs, found, strict=True) if v is not None
        )
        return found if same else None

    def _pooled(self, node: ir.Node) -> Carriers | None:
        op = OPS_BY_NAME[node.op_type]
        if op.tile_weights is None or any(output.uses() or output.is_graph_output() for output in node.outputs[2:]):
            return None
        numbers = op.contract.token_inputs
        for number in numbers:
            value = node.inputs[number]
            static = value is not None and value.shape is not None and isinstance(value.shape[-1], int)
            if not static or self._axes.get(value) != TOKEN_AXIS:  # type: ignore[arg-type] # not None, as it is static
                return None
        return tuple(TOKEN_AXIS if number in numbers else None for number in range(len(node.inputs)))

    @staticmethod
    def _cheap(node: ir.Node, carried: Carriers) -> bool:
        return node.op_type not in _HEAVY and sum(axis is not None for axis in carried) == 1

    def _collect(self, end: ir.Node) -> tuple[ir.Node, ...]:
        found: list[ir.Node] = []
        seen: set[ir.Node] = set()

        def visit(node: ir.Node) -> None:
            seen.add(node)
            for value, axis in zip(node.inputs, self.carried(node) or (), strict=True):
                producer = value.producer() if value is not None and axis is not None else None
                if producer is None or producer in seen or producer in self._ends:
                    continue
                if self.carried(producer) is not None:
                    visit(producer)
            found.append(node)

        visit(end)
        return tuple(found[:-1]) if end.domain == DOMAIN else tuple(found)
