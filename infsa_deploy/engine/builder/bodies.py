"""Making the function bodies of custom ops plain nodes, for an engine without plugins.

TensorRT's parser takes function bodies, but not a Loop without a condition, as the Neumann series has, and tiles made
for a CPU's cache would be loops on a GPU.
1. An If in a body gives way to its first branch, which is the general one: the whole computation, which the other
   branch does in tiles; a slice, which the other branch knows to be all.
2. Calls of model-local functions are inlined.
3. A Loop with a constant count, no condition and no stacked outputs is unrolled; a count of 0 leaves its inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx
from onnx import inliner

from infsa_deploy.engine.onnx_file import DOMAIN

ASIDE = "infsa.aside"


def expand_bodies(model: onnx.ModelProto, only: Collection[str] | None = None) -> onnx.ModelProto:
    """A copy of `model` with no function bodies; Loops that are not of the kind above stay as they are.

    With `only`, the bodies of the nodes of these names alone are expanded; other nodes keep theirs.
    """
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    if only is not None:
        return _expand_named(whole, only)
    for function in whole.functions:
        _replace_nodes(function, _without_branches(function.node))
    inlined = inliner.inline_local_functions(whole)
    makers = {name: node for node in inlined.graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in inlined.graph.node:
        count = _trip_count(node, makers) if node.op_type == "Loop" else None
        nodes += [node] if count is None else _unrolled(node, count)
    _replace_nodes(inlined.graph, nodes)
    return inlined


def _expand_named(whole: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Expand a model of which the other nodes have, for the time being, no functions."""
    aside = [node for node in whole.graph.node if node.domain == DOMAIN and node.name not in names]
    for node in aside:
        node.domain = ASIDE
    whole.opset_import.append(onnx.helper.make_opsetid(ASIDE, 1))
    functions = [onnx.FunctionProto.FromString(function.SerializeToString()) for function in whole.functions]
    expanded = expand_bodies(whole)
    for node in expanded.graph.node:
        node.domain = DOMAIN if node.domain == ASIDE else node.domain
    kept = [entry for entry in expanded.opset_import if entry.domain not in (ASIDE, DOMAIN)]
    del expanded.opset_import[:]
    expanded.opset_import.extend([*kept, onnx.helper.make_opsetid(DOMAIN, 1)])
    called = {node.op_type for node in expanded.graph.node if node.domain == DOMAIN}
    expanded.functions.extend(function for function in functions if function.name in called)
    return expanded


def _replace_nodes(holder: onnx.GraphProto | onnx.FunctionProto, nodes: Iterable[onnx.NodeProto]) -> None:
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del holder.node[:]
    holder.node.extend(copied)


def _without_branches(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """`nodes` with the first branch of each If in its place, and without what then feeds no output but a condition."""
    kept: list[onnx.NodeProto] = []
    conditions: set[str] = set()
    for node in nodes:
        if node.op_type != "If":
            kept.append(node)
            continue
        branch = next(attribute.g for attribute in node.attribute if attribute.name == "then_branch")
        results = zip(branch.output, node.output, strict=True)
        kept += [
            *_without_branches(branch.node),
            *(onnx.helper.make_node("Identity", [a.name], [b]) for a, b in results),
        ]
        conditions.add(node.input[0])
    return _without_makers_of(conditions, kept)


def _without_makers_of(unread: set[str], nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """`nodes` without those whose outputs are `unread` now, or become so."""
    kept = nodes
    while unread:
        dropped = [node for node in kept if unread.issuperset(node.output)]
        kept = [node for node in kept if not unread.issuperset(node.output)]
        read = {name for node in kept for name in _names_read(node)}
        unread = {name for node in dropped for name in node.input} - read
    return kept


def _names_read(node: onnx.NodeProto) -> set[str]:
    graphs = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return {*node.input, *(name for graph in graphs for inner in graph.node for name in _names_read(inner))}


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
