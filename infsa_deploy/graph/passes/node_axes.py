"""What a node says of axes: constants, attributes and ranks, each axis counted from 0."""

from __future__ import annotations

import onnx_ir as ir

END = 2**31 - 1  # a Slice that ends here or later ends with its axis


def constant_ints(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant integer tensor, flat; None if the value is absent, not constant or not integer."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or not tensor.dtype.is_integer():
        return None
    return [int(element) for element in tensor.numpy().reshape(-1)]


def axis_attribute(node: ir.Node, default: int, name: str = "axis") -> int | None:
    """The node's axis attribute counted from 0, or None if the rank of its first input is not known."""
    attribute = node.attributes.get(name)
    axis = attribute.as_int() if attribute is not None else default
    return from_zero(axis, rank_of(node.inputs[0]))


def sliced_axes(node: ir.Node) -> list[int] | None:
    """The axes a Slice cuts, counted from 0, or None if they are not constant."""
    rank = rank_of(node.inputs[0])
    if rank is None:
        return None
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        given = constant_ints(node.inputs[3])
    else:
        starts = constant_ints(node.inputs[1])
        given = None if starts is None else list(range(len(starts)))
    if given is None:
        return None
    found = [from_zero(entry, rank) for entry in given]
    return [entry for entry in found if entry is not None] if None not in found else None


def rank_of(value: ir.Value | None) -> int | None:
    """How many axes a value has; None if it is absent or its shape is not known."""
    return None if value is None or value.shape is None else len(value.shape)


def from_zero(axis: int, rank: int | None) -> int | None:
    """An axis that may be negative, counted from 0; None where the rank has no such axis or is not known."""
    if rank is None or not -rank <= axis < rank:
        return None
    return axis + rank if axis < 0 else axis
