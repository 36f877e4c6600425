"""Names and constants that are new to a graph."""

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
