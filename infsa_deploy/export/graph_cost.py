"""Counting what a graph computes, exactly, node by node, from the shapes recorded in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import onnx_ir as ir

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, Op

Shape = tuple[int, ...]
Sizes = Mapping[str, int]


def count_flops(model: ir.Model, sizes: Sizes) -> Counter[str]:
    """Floating-point operations by op type, a multiply-add counting 2.

    Counted are MatMul, Gemm, Conv and the custom ops by their contracts; element-wise work is not (below 1 % of a
    ViT's). `sizes` gives the free axes by name, for example {"batch": 1}.

    Raises:
        ModelError: a shape that is needed is not recorded in the graph.
    """
    flops: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            op, axes, attributes = bound_op(node, sizes)
            flops[node.op_type] += op.flops(axes, attributes)
        elif node.domain == "" and node.op_type in COUNTED:
            flops[node.op_type] += COUNTED[node.op_type](node, sizes)
    return flops


def bound_op(node: ir.Node, sizes: Sizes) -> tuple[Op, dict[str, int], dict[str, float]]:
    """The op of a custom node, the sizes of its axes by name, and its attributes."""
    op = next(op for op in OPS if op.contract.name == node.op_type)
    attributes = {spec.name: node.attributes[spec.name].value for spec in op.contract.attributes}
    inputs = zip(op.contract.inputs, node.inputs, strict=True)
    shapes = {spec.name: static_shape(value, sizes) for spec, value in inputs}
    heads = int(attributes.get("heads") or shapes["u"][1])
    return op, op.contract.bind_axes(shapes, heads), attributes


def static_shape(value: ir.Value | None, sizes: Sizes) -> Shape:
    """The shape of `value` with its free axes filled in from `sizes`."""
    if value is None or value.shape is None:
        raise ModelError(
            f"the graph records no shape for {value.name if value else 'an input'!r}.",
            "shapes are inferred at export and stored in the file.",
            "export the model again.",
        )
    return tuple(_size(dim, sizes, value) for dim in value.shape)


def _size(dim: int | ir.SymbolicDim, sizes: Sizes, value: ir.Value) -> int:
    if isinstance(dim, int):
        return dim
    size = dim.evaluate(sizes)
    if not isinstance(size, int):
        raise ModelError(
            f"axis {dim.value!r} of {value.name!r} is free.",
            f"sizes are given for {', '.join(sizes) or 'nothing'}.",
            "state its size.",
        )
    return size


def _matmul(node: ir.Node, sizes: Sizes) -> int:
    left, out = static_shape(node.inputs[0], sizes), static_shape(node.outputs[0], sizes)
    return 2 * math.prod(out) * left[-1]


def _gemm(node: ir.Node, sizes: Sizes) -> int:
    transposed = "transA" in node.attributes and node.attributes["transA"].value
    inner = static_shape(node.inputs[0], sizes)[0 if transposed else 1]
    return 2 * math.prod(static_shape(node.outputs[0], sizes)) * inner


def _conv(node: ir.Node, sizes: Sizes) -> int:
    weight, out = static_shape(node.inputs[1], sizes), static_shape(node.outputs[0], sizes)
    return 2 * math.prod(out) * math.prod(weight[1:])


COUNTED: dict[str, Callable[[ir.Node, Sizes], int]] = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv}
