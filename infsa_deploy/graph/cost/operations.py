"""Counting what a graph computes, exactly, node by node, from the shapes recorded in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import onnx_ir as ir

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import OPS_BY_NAME
from infsa_deploy.ops.contract import DOMAIN, Op

Shape = tuple[int, ...]
Sizes = Mapping[str, int]


def count_flops(model: ir.Model, sizes: Sizes) -> Counter[str]:
    """Floating-point operations by op type, a multiply-add counting 2.

    Counted are MatMul (its quantised forms too), Gemm, Conv and the custom ops by their contracts; element-wise work
    is not (below 1 % of a ViT's). `sizes` gives the free axes by name, for example {"batch": 1}.

    Raises:
        ModelError: a shape that is needed is not recorded in the graph.
    """
    flops: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        flops[node.op_type] += _node_flops(node, sizes)
    return +flops


def count_flops_by_type(model: ir.Model, sizes: Sizes) -> Counter[str]:
    """The same operations by the type that they are computed in: fp32, fp16, bf16, fp64 or int8.

    A product of dequantised values counts as int8: that is how it is executed. Raises as count_flops.
    """
    flops: Counter[str] = Counter()
    for node in model.graph.all_nodes():
        operations = _node_flops(node, sizes)
        if operations:
            flops[_computed_in(node)] += operations
    return flops


def _node_flops(node: ir.Node, sizes: Sizes) -> int:
    if node.domain == DOMAIN:
        op, axes, attributes = bound_op(node, sizes)
        return op.flops(axes, attributes)
    if (node.domain, node.op_type) in COUNTED:
        return COUNTED[node.domain, node.op_type](node, sizes)
    return 0


def bound_op(node: ir.Node, sizes: Sizes) -> tuple[Op, dict[str, int], dict[str, float]]:
    """The op of a custom node, the sizes of its axes by name, and its attributes."""
    op = OPS_BY_NAME[node.op_type]
    specs = op.contract.attributes
    attributes = {spec.name: spec.default for spec in specs if spec.default is not None}
    attributes |= {spec.name: node.attributes[spec.name].value for spec in specs if spec.name in node.attributes}
    inputs = zip(op.contract.inputs, node.inputs, strict=True)
    shapes = {spec.name: static_shape(value, sizes) for spec, value in inputs}
    heads = int(attributes.get("heads") or shapes["u"][1])
    return op, op.contract.bind_axes(shapes, heads), attributes


def _computed_in(node: ir.Node) -> str:
    integer = "Integer" in node.op_type or node.op_type in ("DynamicQuantizeMatMul", "QLinearMatMul")
    producers = [value.producer() for value in node.inputs[:2] if value is not None]
    dequantised = all(producer is not None and producer.op_type == "DequantizeLinear" for producer in producers)
    if integer or dequantised:
        return "int8"
    value = node.inputs[0]
    if value is None or value.dtype not in TYPE_NAMES:
        raise ModelError(f"the graph records no type for {node.name!r}.", "", "export the model again.")
    return TYPE_NAMES[value.dtype]


def count_bytes(model: ir.Model, sizes: Sizes) -> Counter[str]:
    """Bytes that one call moves, by what they are.

    `weights`, `inputs` and `outputs` are each moved once by any implementation. `activations` are the values between
    the nodes, written once and read once a use: what is moved when every node is a pass over memory of its own.
    A custom op is one node. `sizes` as in count_flops.

    Raises:
        ModelError: a shape that is needed is not recorded in the graph.
    """
    moved: Counter[str] = Counter()
    graph = model.graph
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    for value in graph.initializers.values():
        moved["weights"] += value.const_value.nbytes if value.const_value else 0
    for value in inputs:
        moved["inputs"] += value_bytes(value, sizes)
    for node in graph:
        if node.op_type == "Constant" and node.domain == "":
            moved["weights"] += node.outputs[0].const_value.nbytes if node.outputs[0].const_value else 0
            continue
        for value in node.outputs:
            if value in outputs:
                moved["outputs"] += value_bytes(value, sizes)
            elif value.uses():
                moved["activations"] += value_bytes(value, sizes) * (1 + len(value.uses()))
    return moved


def value_bytes(value: ir.Value, sizes: Sizes) -> int:
    """Size of `value` in memory; ModelError when its type or shape is not recorded."""
    if value.dtype is None:
        raise ModelError(f"the graph records no type for {value.name!r}.", "", "export the model again.")
    return math.prod(static_shape(value, sizes)) * value.dtype.bitwidth // 8


def static_shape(value: ir.Value | None, sizes: Sizes) -> Shape:
    """The shape of `value` with its free axes filled in from `sizes`; ModelError when it is not recorded.

    Where a Reshape merged free axes, shape inference gives the result a name of its own: it is then what is left of
    the number of elements.
    """
    if value is None or value.shape is None:
        raise ModelError(
            f"the graph records no shape for {value.name if value else 'an input'!r}.",
            "shapes are inferred at export and stored in the file.",
            "export the model again.",
        )
    found = [dim if isinstance(dim, int) else dim.evaluate(sizes) for dim in value.shape]
    known = [size for size in found if isinstance(size, int)]
    if len(known) == len(found):
        return tuple(known)
    producer = value.producer()
    if producer is not None and producer.op_type == "Reshape" and len(known) == len(found) - 1:
        merged = math.prod(static_shape(producer.inputs[0], sizes)) // math.prod(known)
        return tuple(size if isinstance(size, int) else merged for size in found)
    if producer is not None and producer.op_type == "Transpose":
        before = static_shape(producer.inputs[0], sizes)
        return tuple(before[axis] for axis in producer.attributes["perm"].value)
    raise ModelError(
        f"the shape {value.shape} of {value.name!r} has a free axis.",
        f"sizes are given for {', '.join(sizes) or 'nothing'}.",
        "state its size.",
    )


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


COUNTED: dict[tuple[str, str], Callable[[ir.Node, Sizes], int]] = {
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Conv"): _conv,
    ("", "MatMulInteger"): _matmul,
    ("", "QLinearMatMul"): _matmul,
    ("com.microsoft", "DynamicQuantizeMatMul"): _matmul,
    ("com.microsoft", "MatMulIntegerToFloat"): _matmul,
}
TYPE_NAMES = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp64",
}
