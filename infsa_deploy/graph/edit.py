"""Constants, names and nodes that are new to a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def free_name(graph: ir.Graph, stem: str) -> str:
    """`stem`, or `stem_1`, `stem_2`, ...: the first that no value of the graph or its subgraphs has."""
    taken, name, number = ir.convenience.create_value_mapping(graph), stem, 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name


def add_initializer(graph: ir.Graph, stem: str, array: np.ndarray[Any, Any]) -> ir.Value:
    """Register `array` as an initializer under a free name made from `stem`."""
    tensor = ir.tensor(np.asarray(array, order="C"), name=free_name(graph, stem))
    value = ir.Value(
        name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
    )
    graph.register_initializer(value)
    return value


class NodeList:
    """Nodes in order, for a graph or for a subgraph inside it; constants go to the graph.

    Attributes:
        nodes: what was added so far.
        prefix: begins the name of every value made here; no other value of the graph may begin with it.
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self._graph, self.prefix = graph, prefix
        self.nodes: list[ir.Node] = []

    def add(
        self, op_type: str, *inputs: ir.Value | None, dtype: ir.DataType | None = None, **attributes: Any
    ) -> ir.Value:
        """Append a node of the ONNX domain and return its one output, of the first input's type unless given."""
        node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes))
        return self.append(node, dtype or next((v.dtype for v in inputs if v is not None), None))

    def append(self, node: ir.Node, dtype: ir.DataType | None) -> ir.Value:
        """Append a node made elsewhere, naming its outputs, and return the first."""
        for number, value in enumerate(node.outputs):
            value.name = f"{self.prefix}_{len(self.nodes)}" + (f"_{number}" if number else "")
        if dtype is not None:
            node.outputs[0].type = ir.TensorType(dtype)
        self.nodes.append(node)
        return node.outputs[0]

    def ints(self, *values: int) -> ir.Value:
        """A constant vector of int64."""
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant of any kind."""
        return add_initializer(self._graph, f"{self.prefix}_constant", array)
