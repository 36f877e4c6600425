"""Which rows of a token axis a node selects, and where the rows of a concatenation come from."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from infsa_deploy.graph.passes.node_axes import END, axis_attribute, constant_ints, sliced_axes


@dataclass(frozen=True)
class Rows:
    """Some rows of one axis, in order: `axis` counts from 0, an index below 0 counts from the end."""

    axis: int
    index: tuple[int, ...]


def pays(rows: Rows, value: ir.Value | None) -> bool:
    """Whether the rows are few enough, at most half of the value, to be worth a copy."""
    length = value.shape[rows.axis] if value is not None and value.shape is not None else None
    return not isinstance(length, int) or 2 * len(rows.index) <= length


def leading(rows: Rows) -> Rows | None:
    """The same rows in the axis's own order if they are the first ones of it, each of them; None if not."""
    first = tuple(range(len(rows.index)))
    return Rows(rows.axis, first) if tuple(sorted(rows.index)) == first else None


def selection(node: ir.Node) -> Rows | None:
    """The rows that a Gather with a constant index or a Slice with constant bounds takes, if they are known."""
    if node.domain != "" or node.op_type not in ("Gather", "Slice"):
        return None
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    rows = _gathered(node, source.shape) if node.op_type == "Gather" else _sliced(node, source.shape)
    return rows if rows is not None and rows.index else None


def _gathered(node: ir.Node, shape: ir.Shape) -> Rows | None:
    axis, index, indices = axis_attribute(node, default=0), constant_ints(node.inputs[1]), node.inputs[1]
    if axis is None or index is None or indices is None or indices.shape is None or len(indices.shape) > 1:
        return None
    length = shape[axis]
    if not isinstance(length, int):
        return Rows(axis, tuple(index))
    if not all(-length <= i < length for i in index):
        return None
    return Rows(axis, tuple(i % length for i in index))


def _sliced(node: ir.Node, shape: ir.Shape) -> Rows | None:
    axes, starts, ends = sliced_axes(node), constant_ints(node.inputs[1]), constant_ints(node.inputs[2])
    given = node.inputs[4] if len(node.inputs) > 4 else None
    steps = [1] if given is None else constant_ints(given)
    if not (axes and starts and ends and steps) or len(axes) != 1:
        return None
    length, start, end, step = shape[axes[0]], starts[0], ends[0], steps[0]
    if isinstance(length, int):
        return Rows(axes[0], tuple(range(*slice(start, end, step).indices(length))))
    last = start == -1 and end >= END
    one = last or (end == start + 1 and end != 0)
    return Rows(axes[0], (start,)) if one and step == 1 else None


def drops_axis(node: ir.Node) -> bool:
    """Whether a selecting node has a scalar index, which takes the axis away."""
    indices = node.inputs[1]
    return node.op_type == "Gather" and indices is not None and indices.shape is not None and not len(indices.shape)


def operand_holding(node: ir.Node, wanted: Rows) -> tuple[int, Rows] | None:
    """The one operand of a Concat in which all wanted rows lie, and which rows of it they are."""
    places = {_place(node, wanted.axis, index) for index in wanted.index}
    numbers = {place[0] for place in places if place is not None}
    if None in places or len(numbers) != 1:
        return None
    index = tuple(place[1] for i in wanted.index if (place := _place(node, wanted.axis, i)) is not None)
    return numbers.pop(), Rows(wanted.axis, index)


def _place(node: ir.Node, axis: int, index: int) -> tuple[int, int] | None:
    """Operand number and row there of row `index` of a Concat; None if a free length hides it."""
    numbers = range(len(node.inputs)) if index >= 0 else reversed(range(len(node.inputs)))
    for number in numbers:
        operand = node.inputs[number]
        length = operand.shape[axis] if operand is not None and operand.shape is not None else None
        if not isinstance(length, int):
            return None
        if -length <= index < length:
            return number, index % length
        index += length if index < 0 else -length
    return None
