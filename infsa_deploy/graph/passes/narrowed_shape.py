"""The shape operand of a Reshape or Expand once its input holds only some of the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

Dim = int | ir.SymbolicDim


def same_length(a: Dim, b: Dim) -> bool:
    """True only if two dimensions are known to be equal: the same number or the same named symbol."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def narrowed_shape(node: ir.Node, axis: int, rows: int | None) -> list[int] | None:
    """The shape operand of a Reshape or Expand whose carrying input now has `rows` rows; None if there is none.

    Args:
        node: a Reshape or Expand that is token-wise along `axis` of its output.
        rows: the number of rows, or None for "as many as arrive".
    Returns: one integer an output axis; for Reshape 0 copies an input axis and -1 infers one (so `allowzero` must
        be off), for Expand 1 keeps the input's length.
    """
    source, target = node.inputs[0], node.outputs[0].shape
    if source is None or source.shape is None or target is None:
        return None
    if node.op_type == "Expand":
        return _expanded_shape(source.shape, target, axis, rows)
    return shape_operand(source.shape, target, carrying_axis(source.shape, target, axis), axis, rows)


def carrying_axis(source: ir.Shape, target: ir.Shape, axis: int) -> int | None:
    """The axis of a Reshape's input that an axis of its output is: as long, with as many elements before it."""
    for own in range(len(source)):
        if same_length(source[own], target[axis]) and _same_product(source[:own], target[:axis]):
            return own
    return None


def _same_product(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    if any(isinstance(dim, ir.SymbolicDim) and dim.value is None for dim in (*a, *b)):
        return False
    return _product(a) == _product(b)


def _product(dims: Sequence[Dim]) -> Dim:
    product: Dim = math.prod(dim for dim in dims if isinstance(dim, int))
    for dim in dims:
        product = product if isinstance(dim, int) else dim * product
    return product if isinstance(product, int) else product.simplify()


def shape_operand(
    source: ir.Shape, target: ir.Shape, own: int | None = None, axis: int | None = None, rows: int | None = None
) -> list[int] | None:
    """The shape operand with which Reshape makes `target` from `source`, with another number of rows on one axis.

    Args: as for `narrowed_shape`, `own` the axis of `source` that carries the rows; without them the target is made as
        it is.
    Returns: one integer an output axis, or None if more than one length would have to be inferred.
    """
    shape: list[int] = []
    for position, dim in enumerate(target):
        same = position < len(source) and same_length(source[position], dim)
        copies = same and (position == own) == (position == axis)  # the axis of the rows is copied by itself alone
        if position == axis and rows is not None:
            shape.append(rows)
        elif position == axis or not isinstance(dim, int):
            shape.append(0 if copies else -1)
        elif dim == 0:
            return None
        else:
            shape.append(dim)
    return shape if shape.count(-1) <= 1 else None


def _expanded_shape(source: ir.Shape, target: ir.Shape, axis: int, rows: int | None) -> list[int] | None:
    shape: list[int] = []
    for position, dim in enumerate(target):
        own = position - (len(target) - len(source))
        keeps = own >= 0 and same_length(source[own], dim)
        if keeps:
            shape.append(1)
        elif position == axis:
            if rows is None:
                return None
            shape.append(rows)
        elif isinstance(dim, int):
            shape.append(dim)
        else:
            return None
    return shape
