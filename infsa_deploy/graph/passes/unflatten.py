"""Undo a product on flattened rows: `Reshape(Gemm(a, W, b))` becomes `Add(MatMul(Reshape(a), W), b)`.

torch's MultiheadAttention merges batch and tokens for its output projection and splits them again, which hides the
token axis. On [B, N, E] it is the same product: each row is the same dot products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from infsa_deploy.graph.edit import add_initializer, free_name
from infsa_deploy.graph.passes.narrowed_shape import same_length, shape_operand


def unflatten(node: ir.Node) -> bool:
    """Move a Reshape that splits the rows of a Gemm above the product.

    Args:
        node: the Reshape. The Gemm must have no other use, a constant weight and a bias of one axis at most.
    Returns: False, and nothing changed, if the node is not such a Reshape.
    """
    value, target = node.inputs[0], node.outputs[0].shape
    gemm = value.producer() if value is not None else None
    if value is None or value.shape is None or gemm is None or target is None or node.op_type != "Reshape":
        return False
    if value.is_graph_output() or len(value.uses()) > 1 or not same_length(value.shape[-1], target[-1]):
        return False
    weight = _weight(gemm)
    source = _before_reshape(gemm.inputs[0])
    if weight is None or source is None or source.shape is None:
        return False
    split = ir.Shape([*target[:-1], weight.shape[0]])
    shape = shape_operand(source.shape, split)
    if shape is None:
        return False
    _replace(node, gemm, source, split, np.array(shape, dtype=np.int64), weight)
    return True


def _weight(gemm: ir.Node) -> np.ndarray[Any, Any] | None:
    """The constant right operand, [inputs, outputs], of a Gemm that only multiplies and adds; None otherwise."""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    if gemm.op_type != "Gemm" or gemm.domain != "":
        return None
    if any(name in gemm.attributes and gemm.attributes[name].value != plain[name] for name in plain):
        return None
    bias = gemm.inputs[2] if len(gemm.inputs) > 2 else None
    if bias is not None and (bias.shape is None or len(bias.shape) > 1):
        return None
    weight = gemm.inputs[1]
    tensor = None if weight is None or weight.is_graph_input() else ir.convenience.get_const_tensor(weight)
    if tensor is None:
        return None
    matrix: np.ndarray[Any, Any] = tensor.numpy()
    return matrix.T if "transB" in gemm.attributes and gemm.attributes["transB"].as_int() else matrix


def _before_reshape(value: ir.Value | None) -> ir.Value | None:
    producer = value.producer() if value is not None else None
    return producer.inputs[0] if producer is not None and producer.op_type == "Reshape" else value


def _replace(
    node: ir.Node,
    gemm: ir.Node,
    source: ir.Value,
    split: ir.Shape,
    shape: np.ndarray[Any, Any],
    weight: np.ndarray[Any, Any],
) -> None:
    graph, old = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    rows = ir.Node("", "Reshape", [source, add_initializer(graph, f"{source.name}_shape", shape)])
    product = ir.Node("", "MatMul", [rows.outputs[0], add_initializer(graph, f"{old.name}_weight", weight)])
    last, added = product, [rows, product]
    if len(gemm.inputs) > 2 and gemm.inputs[2] is not None:
        last = ir.Node("", "Add", [product.outputs[0], gemm.inputs[2]])
        added.append(last)
    rows.outputs[0].shape = split
    for new in added:
        new.outputs[0].name = free_name(graph, f"{old.name}_{new.op_type.lower()}")
        if old.dtype is not None:
            new.outputs[0].dtype = old.dtype
        graph.insert_before(node, new)
    product.outputs[0].shape = last.outputs[0].shape = old.shape
    if old.is_graph_output():
        old.name, last.outputs[0].name = f"{old.name}_flat", old.name
    old.replace_all_uses_with(last.outputs[0], replace_graph_outputs=True)
    graph.remove([node, gemm], safe=True)
