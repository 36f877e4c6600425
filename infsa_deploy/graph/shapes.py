"""Shapes and types of everything in a graph, constants included."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common.shape_inference import infer_shapes


def infer_all_shapes(model: ir.Model) -> None:
    """Fill in shapes and types where they are missing; what nodes of custom domains record is kept."""
    for node in model.graph:
        for value in node.inputs:
            if value is not None:
                ir.convenience.get_const_tensor(value, propagate_shape_type=True)
    infer_shapes(model, check_type=False, strict_mode=False)
