"""Adding constants to a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def add_initializer(graph: ir.Graph, stem: str, array: np.ndarray[Any, Any]) -> ir.Value:
    """Register `array` as an initializer whose name starts with `stem` and is new to the graph."""
    taken, number = ir.convenience.create_value_mapping(graph), 0
    while f"{stem}_{number}" in taken:
        number += 1
    tensor = ir.tensor(np.ascontiguousarray(array), name=f"{stem}_{number}")
    value = ir.Value(
        name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
    )
    graph.register_initializer(value)
    return value
