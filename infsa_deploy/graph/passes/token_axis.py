"""How each ONNX operator maps the token axis: for an axis of its output, the axis of each input that feeds it.

A node is token-wise along an output axis if row i of the output depends on row i of some inputs and on nothing
else of them. Semantics: the ONNX operator specification, opset 18 and later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from infsa_deploy.graph.passes.narrowed_shape import carrying_axis, narrowed_shape, same_length
from infsa_deploy.graph.passes.node_axes import END, axis_attribute, constant_ints, from_zero, rank_of, sliced_axes

Carriers = tuple[int | None, ...]

_MIXED = -1


def _operators(names: str) -> frozenset[str]:
    return frozenset(names.split())


_UNARY = _operators(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh Cast CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu
    Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu
    """
)
_BROADCAST = _operators(
    """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual
    Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor
    """
)
_WITHIN_ONE_AXIS = _operators("Concat CumSum Hardmax LogSoftmax LpNormalization Softmax Split")
_REDUCTIONS = _operators(
    """
    ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare
    """
)


def carriers(node: ir.Node, axis: int) -> Carriers | None:
    """Find, for an axis of the node's first output, the axis of every input that carries the same rows.

    Args:
        node: any node; shapes of its values are read where the operator's meaning depends on them.
        axis: an axis of `node.outputs[0]`, counted from 0.
    Returns: one entry an input, None for an input used whole (a weight, an operand that is broadcast); or None if
        the node is not token-wise along that axis, or not known to be. Only an Expand that makes the rows itself
        has no carrying input at all.
    """
    if node.domain != "" or axis < 0:
        return None
    if node.op_type in _UNARY:
        return (axis, *[None] * (len(node.inputs) - 1))
    if node.op_type in _BROADCAST:
        found: Sequence[int | None] | None = _broadcast(node.inputs, node.outputs[0].shape, axis)
    elif node.op_type in _WITHIN_ONE_AXIS:
        found = _within_one_axis(node, axis)
    elif node.op_type in _REDUCTIONS:
        found = _reduction(node, axis)
    else:
        rule = _RULES.get(node.op_type)
        found = rule(node, axis) if rule else None
    if found is None or _MIXED in found:
        return None
    return None if set(found) == {None} and node.op_type != "Expand" else tuple(found)


def _broadcast_axis(value: ir.Value | None, output: ir.Shape, axis: int) -> int | None:
    """The axis of a broadcast operand behind an output axis: None where it repeats, _MIXED where that is unknown."""
    if value is None:
        return None
    if value.shape is None:
        return _MIXED
    own = axis - (len(output) - len(value.shape))
    if own < 0:
        return None
    if same_length(value.shape[own], output[axis]):
        return own
    return None if value.shape[own] == 1 else _MIXED


def _broadcast(inputs: Sequence[ir.Value | None], output: ir.Shape | None, axis: int) -> Sequence[int | None] | None:
    if output is None or axis >= len(output):
        return None
    return [_broadcast_axis(value, output, axis) for value in inputs]


def _within_one_axis(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    if node.op_type == "CumSum":
        given = constant_ints(node.inputs[1])
        mixing = from_zero(given[0], rank_of(node.inputs[0])) if given else None
    else:
        mixing = axis_attribute(node, default=0 if node.op_type == "Split" else -1)
    if mixing is None or mixing == axis:
        return None
    if node.op_type == "Concat":
        return [axis] * len(node.inputs)
    return [axis, *[None] * (len(node.inputs) - 1)]


def _reduction(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    rank = rank_of(node.inputs[0])
    if rank is None:
        return None
    if node.op_type in ("ArgMax", "ArgMin"):
        reduced = [axis_attribute(node, default=0)]
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        given = constant_ints(node.inputs[1])
        if not given:
            return None
        reduced = [from_zero(entry, rank) for entry in given]
    else:
        return None
    keepdims = node.attributes.get("keepdims")
    if keepdims is not None and keepdims.as_int() == 0:
        kept = [position for position in range(rank) if position not in reduced]
        axis = kept[axis]
    return None if axis in reduced or None in reduced else [axis, *[None] * (len(node.inputs) - 1)]


def _layer_normalization(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    first = axis_attribute(node, default=-1)
    if first is None or axis >= first:
        return None
    return [axis, *(_broadcast(node.inputs[1:], node.outputs[0].shape, axis) or [_MIXED])]


def _matmul(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    left, right = rank_of(node.inputs[0]), rank_of(node.inputs[1])
    output = node.outputs[0].shape
    if left is None or right is None or output is None or min(left, right) < 2:
        return None
    rank = len(output)
    if axis == rank - 2:
        return [left - 2, None]
    if axis == rank - 1:
        return [None, right - 1]
    return _broadcast(node.inputs, output, axis)


def _gemm(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    def transposed(name: str) -> bool:
        return name in node.attributes and node.attributes[name].as_int() != 0

    product = [int(transposed("transA")), None] if axis == 0 else [None, int(not transposed("transB"))]
    offset = _broadcast(node.inputs[2:], node.outputs[0].shape, axis)
    return None if offset is None else [*product, *offset]


def _transpose(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    rank = rank_of(node.inputs[0])
    if rank is None:
        return None
    order = node.attributes["perm"].as_ints() if "perm" in node.attributes else tuple(reversed(range(rank)))
    return [order[axis]]


def _unsqueeze(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    added, rank = constant_ints(node.inputs[1]), rank_of(node.inputs[0])
    if added is None or rank is None:
        return None
    positions = [from_zero(entry, rank + len(added)) for entry in added]
    kept = [position for position in range(rank + len(added)) if position not in positions]
    return None if axis in positions else [kept.index(axis), None]


def _squeeze(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    removed = constant_ints(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = rank_of(node.inputs[0])
    if removed is None or rank is None:
        return None
    positions = [from_zero(entry, rank) for entry in removed]
    kept = [position for position in range(rank) if position not in positions]
    return [kept[axis], None]


def _reshape(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    source = node.inputs[0].shape if node.inputs[0] is not None else None
    target = node.outputs[0].shape
    if source is None or target is None or narrowed_shape(node, axis, 1) is None:
        return None
    own = carrying_axis(source, target, axis)
    return None if own is None else [own, None]


def _expand(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    target = node.outputs[0].shape
    if target is None or axis >= len(target) or narrowed_shape(node, axis, 1) is None:
        return None
    return [_broadcast_axis(node.inputs[0], target, axis), None]


def _slice(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    axes, starts, ends = sliced_axes(node), constant_ints(node.inputs[1]), constant_ints(node.inputs[2])
    if axes is None:
        return None
    if axis in axes:
        steps = constant_ints(node.inputs[4]) if len(node.inputs) > 4 else [1] * len(axes)
        place = axes.index(axis)
        if not (starts and ends and steps) or (starts[place], steps[place]) != (0, 1) or ends[place] < END:
            return None
    return [axis, *[None] * (len(node.inputs) - 1)]


def _gather(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    gathered, indices = axis_attribute(node, default=0), rank_of(node.inputs[1])
    if gathered is None or indices is None:
        return None
    if axis < gathered:
        return [axis, None]
    if axis < gathered + indices:
        return [None, axis - gathered]
    return [axis - indices + 1, None]


def _einsum(node: ir.Node, axis: int) -> Sequence[int | None] | None:
    equation = node.attributes["equation"].as_string().replace(" ", "")
    if "." in equation or "->" not in equation:
        return None
    operands, result = equation.split("->")
    letter, terms = result[axis], operands.split(",")
    if any(term.count(letter) > 1 for term in terms):
        return None
    return [term.index(letter) if letter in term else None for term in terms]


_RULES: dict[str, Callable[[ir.Node, int], Sequence[int | None] | None]] = {
    "Einsum": _einsum,
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
    "RMSNormalization": _layer_normalization,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
