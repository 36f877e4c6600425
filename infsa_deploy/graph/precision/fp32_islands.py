"""Which nodes of a graph stay in float32 when the rest goes to float16 or bfloat16, and why.

LayerNormalization is not among them: its ONNX definition (stash_type 1) computes mean and variance in float32
whatever it reads and writes. Nor are the ops of domain `infsa`, which accumulate in float32 by contract, nor
MatMul, Gemm and Softmax, whose kernels accumulate in float32 and whose results stay in range.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from infsa_deploy.ops.contract import DOMAIN

_SUM = "a sum over many elements leaves the range of fp16 and drops small terms in bf16"
_COORDINATE = "whole numbers above 2048 (fp16) or 256 (bf16) are not exact, and these become positions"
_INTERPOLATION = "its coordinates and weights are computed in the type it is given"
_STATISTICS = "its definition names no wider type for the sums inside"

KEEP_FP32: dict[str, str] = {
    "CumSum": _SUM,
    "ReduceL1": _SUM,
    "ReduceL2": _SUM,
    "ReduceLogSum": _SUM,
    "ReduceLogSumExp": _SUM,
    "ReduceMean": _SUM,
    "ReduceProd": _SUM,
    "ReduceSum": _SUM,
    "ReduceSumSquare": _SUM,
    "Ceil": _COORDINATE,
    "Floor": _COORDINATE,
    "Mod": _COORDINATE,
    "Range": _COORDINATE,
    "Round": _COORDINATE,
    "GridSample": _INTERPOLATION,
    "Resize": _INTERPOLATION,
    "GlobalAveragePool": _STATISTICS,
    "InstanceNormalization": _STATISTICS,
    "LRN": _STATISTICS,
    "LpNormalization": _STATISTICS,
    "MeanVarianceNormalization": _STATISTICS,
    "Bernoulli": "its type is an attribute of its own",
    "EyeLike": "its type is an attribute of its own",
    "RandomNormal": "its type is an attribute of its own",
    "RandomNormalLike": "its type is an attribute of its own",
    "RandomUniform": "its type is an attribute of its own",
    "RandomUniformLike": "its type is an attribute of its own",
}
FOLLOWS = "finishes what a float32 node began, up to the division or product that brings it back into range"
FEEDS = "is read by float32 nodes only"
NUMBERS = f"turns whole numbers into float or back; {_COORDINATE}"

_ARITHMETIC = frozenset(["Abs", "Add", "Clip", "Max", "Min", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub"])
_CARRY = _ARITHMETIC | {"Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_UNFINISHED = frozenset([_SUM, _COORDINATE, NUMBERS, FOLLOWS])
_CLOSE = frozenset(["Div", "Mul"])
_WIDENING_OUTPUTS = {"LayerNormalization": 1}


def fp32_nodes(nodes: Iterable[ir.Node], low: ir.DataType, opset: int) -> dict[ir.Node, str]:
    """The nodes to leave in float32, each with its reason.

    Args:
        nodes: all nodes, those of subgraphs too, in topological order; FLOAT is the only type that is considered.
        low: FLOAT16 or BFLOAT16.
        opset: the model's version of the ONNX operators.
    """
    nodes = [node for node in nodes if any(is_float(value) for value in (*node.inputs, *node.outputs))]
    kept: dict[ir.Node, str] = {}
    carrying: set[ir.Node] = set()
    for node in nodes:
        reason = _own_reason(node)
        if reason is None and node.op_type in _CARRY | _CLOSE and _follows(node, carrying):
            reason = FOLLOWS
        if reason is None and not any(accepts(node, low, opset)):
            kept[node] = f"ONNX opset {opset} has no {node.op_type} for {low.name}"
        elif reason is not None:
            kept[node] = reason
            if reason in _UNFINISHED and node.op_type not in _CLOSE:
                carrying.add(node)
    _add_feeders(nodes, kept)
    return kept


def accepts(node: ir.Node, low: ir.DataType, opset: int) -> list[bool]:
    """Whether each input, then each output, may have type `low`, by the operator's schema."""
    count = len(node.inputs) + len(node.outputs)
    if node.domain == DOMAIN:
        return [True] * count
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return [False] * count
    name = f"tensor({low.name.lower()})"
    types = {item.type_param_str: item.allowed_type_strs for item in schema.type_constraints}

    def slots(parameters: list[onnx.defs.OpSchema.FormalParameter], number: int) -> list[bool]:
        found = [parameters[min(i, len(parameters) - 1)].type_str for i in range(number)]
        return [name in types.get(kind, [kind]) for kind in found]

    outputs = slots(list(schema.outputs), len(node.outputs))
    first_wide = _WIDENING_OUTPUTS.get(node.op_type, len(outputs))
    outputs[first_wide:] = [False] * len(outputs[first_wide:])
    return slots(list(schema.inputs), len(node.inputs)) + outputs


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is a float32 tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def _own_reason(node: ir.Node) -> str | None:
    if node.domain != "":
        return None
    if node.op_type != "Cast":
        return KEEP_FP32.get(node.op_type)
    source = node.inputs[0].dtype if node.inputs[0] is not None else None
    target = node.outputs[0].dtype
    return NUMBERS if any(kind is not None and kind.is_integer() for kind in (source, target)) else None


def _follows(node: ir.Node, carrying: set[ir.Node]) -> bool:
    producers = [value.producer() for value in node.inputs if is_float(value) and value is not None]
    return any(producer in carrying for producer in producers)


def _add_feeders(nodes: list[ir.Node], kept: dict[ir.Node, str]) -> None:
    """Take in what only computes for float32 nodes: the square before a sum, the arithmetic behind a position."""
    for node in reversed(nodes):
        uses = [use.node for output in node.outputs for use in output.uses()]
        if node in kept or not uses or any(output.is_graph_output() for output in node.outputs):
            continue
        if not all(use in kept for use in uses):
            continue
        positions = all(kept[use] in (NUMBERS, _COORDINATE, FEEDS) for use in uses)
        if _is_square(node) or (positions and node.op_type in _CARRY | _CLOSE):
            kept[node] = FEEDS


def _is_square(node: ir.Node) -> bool:
    twice = node.op_type == "Mul" and node.inputs[0] is node.inputs[1]
    return node.domain == "" and (twice or node.op_type in ("Pow", "Exp"))
