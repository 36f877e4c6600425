"""Making the function bodies of custom ops plain nodes, for an engine without plugins.

TensorRT's parser takes function bodies, but not a Loop without a condition, as the Neumann series has.
1. Calls of model-local functions are inlined.
2. A Loop with a constant count, no condition and no stacked outputs is unrolled; a count of 0 leaves its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import inliner


def expand_bodies(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` with no function bodies; Loops that are not of the kind above stay as they are."""
    inlined = inliner.inline_local_functions(model)
    makers = {name: node for node in inlined.graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in inlined.graph.node:
        count = _trip_count(node, makers) if node.op_type == "Loop" else None
        nodes += [node] if count is None else _unrolled(node, count)
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del inlined.graph.node[:]
    inlined.graph.node.extend(copied)
    return inlined


def _trip_count(loop: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> int | None:
    body = loop.attribute[0].g
    carried = len(loop.input) - 2
    if loop.input[1] or len(body.output) != carried + 1:
        return None
    return _integer(loop.input[0], makers)


def _integer(name: str, makers: Mapping[str, onnx.NodeProto]) -> int | None:
    """The value of an integer scalar made of constants and their differences, or None."""
    node = makers.get(name)
    if node is not None and node.op_type == "Constant" and node.attribute[0].name == "value_int":
        return int(node.attribute[0].i)
    if node is not None and node.op_type == "Sub":
        left, right = (_integer(operand, makers) for operand in node.input)
        return None if left is None or right is None else left - right
    return None


def _unrolled(loop: onnx.NodeProto, count: int) -> list[onnx.NodeProto]:
    body = loop.attribute[0].g
    carried = list(loop.input[2:])
    nodes: list[onnx.NodeProto] = []
    for turn in range(count):
        renamed = dict(zip((value.name for value in body.input[2:]), carried, strict=True))
        for node in body.node:
            if node.output[0] == body.output[0].name:  # the condition, which is always true
                continue
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            copy.name = f"{loop.name}_{turn}_{node.name}"
            renamed.update({name: f"{loop.output[0]}_{turn}_{name}" for name in node.output})
            copy.input[:] = [renamed.get(name, name) for name in node.input]
            copy.output[:] = [renamed[name] for name in node.output]
            nodes.append(copy)
        carried = [renamed[value.name] for value in body.output[1:]]
    last = zip(carried, loop.output, strict=True)
    return nodes + [onnx.helper.make_node("Identity", [a], [b], name=f"{loop.name}_{b}") for a, b in last]
