"""Retype a finished float32 graph to float16 or bfloat16.

1. Every float32 tensor takes the low type, except at the nodes `fp32_islands.fp32_nodes` names; graph inputs and
   outputs only if asked.
2. Where a low tensor meets a float32 node or the reverse, one Cast stands at that edge, shared by all its readers.
3. Weights are converted in the file, not at run time; a weight read by both kinds of node is kept in both types.
4. Integers, booleans and float64 are left alone, and so are attributes: an epsilon is an attribute or a weight.
5. Bodies of If, Loop and Scan are retyped with the graph around them; what enters and leaves them has the low type.
6. Nodes of domain `infsa` take and give the low type. Their function bodies cast inside and are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common.constant_manipulation import LiftConstantsToInitializersPass
from onnx_ir.passes.common.shape_inference import infer_shapes

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.edit import free_name
from infsa_deploy.graph.precision.fp32_islands import accepts, fp32_nodes, is_float
from infsa_deploy.ops.contract import DOMAIN
from infsa_deploy.records.export import PrecisionReport, WeightLoss

FLOAT = ir.DataType.FLOAT
LOW_TYPES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


def retype(model: ir.Model, dtype: Literal["fp16", "bf16"], *, keep_io: bool = True) -> PrecisionReport:
    """Turn weights and activations of a float32 model into the low type, in place.

    Args:
        model: changed in place. Weights on disk are read one at a time and stay in memory in the low type only.
        dtype: the low type.
        keep_io: leave float32 graph inputs and outputs float32, with a Cast behind or before them.
    Raises: ModelError for a model with functions other than bodies of `infsa` ops, with sequences of tensors, or
        with a tensor whose type cannot be told.
    """
    low = LOW_TYPES[dtype]
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _complete_types(model)
    _check(model)
    return _Retyping(model, low, keep_io).run(dtype)


def _complete_types(model: ir.Model) -> None:
    infer_shapes(model, check_type=False, strict_mode=False)
    untyped = False
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN and node.inputs[0] is not None and node.inputs[0].dtype is not None:
            for output in node.outputs:
                untyped = untyped or output.dtype is None
                output.dtype = node.inputs[0].dtype
    if untyped:
        infer_shapes(model, check_type=False, strict_mode=False)


def _check(model: ir.Model) -> None:
    foreign = sorted({f"{domain}.{name}" for domain, name, _ in model.functions if domain != DOMAIN})
    if foreign:
        raise ModelError(
            f"the model calls the functions {', '.join(foreign)}",
            "types inside a function cannot be changed for one caller alone",
            "inline them first (onnx.inliner.inline_local_functions)",
        )
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name and not isinstance(value.type, ir.TensorType):
                raise ModelError(
                    f"the type of {value.name!r}, an output of {node.op_type} {node.name!r}, is {value.type}",
                    "only tensors of a known type can be retyped",
                    "run onnx.shape_inference on the model, or retype before passes that make sequences",
                )


@dataclass
class _Uses:
    """Where a float32 value is read: by nodes that want it in float32 and by nodes that want it in the low type."""

    wide: list[tuple[ir.Node, int]] = field(default_factory=list)
    low: list[tuple[ir.Node, int]] = field(default_factory=list)


class _Retyping:
    """One run over a model: decide, convert weights, put casts at the edges, set types."""

    def __init__(self, model: ir.Model, low: ir.DataType, keep_io: bool) -> None:
        self._graph, self._low, self._keep_io = model.graph, low, keep_io
        self._graphs = [model.graph, *model.graph.subgraphs()]
        self._kept = fp32_nodes(model.graph.all_nodes(), low, model.graph.opset_imports[""])
        self._uses: dict[ir.Value, _Uses] = {}
        self._types: dict[ir.Value, ir.DataType] = {}
        for node in model.graph.all_nodes():
            self._decide(node, accepts(node, low, model.graph.opset_imports[""]))
        self._casts: dict[ir.Value, ir.Value] = {}
        self._bytes_before, self._bytes_after = 0, 0
        self._weights: list[WeightLoss] = []

    def run(self, dtype: str) -> PrecisionReport:
        for graph in self._graphs:
            for value in (*graph.inputs, *graph.initializers.values()):
                self._source(graph, value)
        for value, uses in self._uses.items():
            for readers, wanted in ((uses.wide, FLOAT), (uses.low, self._low)):
                for node, number in readers:
                    node.replace_input_with(number, self._as(value, wanted))
        for graph in self._graphs:
            self._outputs(graph, FLOAT if self._keep_io and graph is self._graph else self._low)
        for value, kind in self._types.items():
            value.type = ir.TensorType(kind)
        return PrecisionReport(
            dtype,
            self._keep_io,
            len(self._weights),
            self._bytes_before,
            self._bytes_after,
            len(self._casts),
            {node.name or node.op_type: reason for node, reason in self._kept.items()},
            tuple(loss for loss in self._weights if loss.to_zero or loss.saturated),
        )

    def _decide(self, node: ir.Node, accepted: list[bool]) -> None:
        stays = node in self._kept or (node.op_type == "Constant" and node.domain == "")
        low = [False] * len(accepted) if stays else accepted
        for number, value in enumerate(node.inputs):
            if value is not None and is_float(value):
                uses = self._uses.setdefault(value, _Uses())
                (uses.low if low[number] else uses.wide).append((node, number))
        for number, value in enumerate(node.outputs, start=len(node.inputs)):
            if is_float(value):
                self._types[value] = self._low if low[number] else FLOAT
        if not stays:
            _set_type_attribute(node, self._low)

    def _source(self, graph: ir.Graph, value: ir.Value) -> None:
        """Type a graph input; convert a weight."""
        if not is_float(value):
            return
        if value.is_graph_input():
            wide = self._keep_io and graph is self._graph
            self._types[value] = FLOAT if wide else self._low
            if value.const_value is not None and not wide:
                value.const_value = self._convert(value)
        elif value.is_graph_output():
            self._types[value] = FLOAT
        else:
            self._weight(graph, value)

    def _weight(self, graph: ir.Graph, value: ir.Value) -> None:
        uses = self._uses.pop(value, _Uses())
        if not uses.low:
            return
        tensor = self._convert(value)
        if uses.wide:
            self._bytes_after += 4 * tensor.size
            tensor.name = free_name(self._graph, f"{value.name}_{self._low.name.lower()}")
            copy = ir.Value(name=tensor.name, type=ir.TensorType(self._low), shape=value.shape, const_value=tensor)
            graph.register_initializer(copy)
            for node, number in uses.low:
                node.replace_input_with(number, copy)
        else:
            value.const_value, value.type = tensor, ir.TensorType(self._low)

    def _convert(self, value: ir.Value) -> ir.Tensor[Any]:
        old = value.const_value
        assert old is not None
        wide = old.numpy()
        low, loss = to_low(wide, self._low, value.name or "")
        self._weights.append(loss)
        self._bytes_before += wide.nbytes
        self._bytes_after += low.nbytes
        return ir.Tensor(low, dtype=self._low, name=value.name)

    def _as(self, value: ir.Value, wanted: ir.DataType) -> ir.Value:
        """The value in the wanted type, through its one Cast if it has the other."""
        if self._types[value] == wanted:
            return value
        if value not in self._casts:
            cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", wanted.value)})
            output = cast.outputs[0]
            output.name = free_name(self._graph, f"{value.name}_{wanted.name.lower()}")
            output.shape, output.type = value.shape, ir.TensorType(wanted)
            producer, graph = value.producer(), value.graph
            if producer is not None and producer.graph is not None:
                producer.graph.insert_after(producer, cast)
            elif isinstance(graph, ir.Graph):
                graph.insert_before(graph[0], cast)
            self._casts[value] = output
        return self._casts[value]

    def _outputs(self, graph: ir.Graph, wanted: ir.DataType) -> None:
        for number, value in enumerate(graph.outputs):
            if value in self._types and self._types[value] != wanted:
                output = self._as(value, wanted)
                if graph is self._graph:
                    kind = self._types[value].name.lower()
                    output.name, value.name = value.name, free_name(self._graph, f"{value.name}_{kind}")
                graph.outputs[number] = output


def to_low(wide: np.ndarray[Any, Any], low: ir.DataType, name: str = "") -> tuple[np.ndarray[Any, Any], WeightLoss]:
    """Round float32 numbers to the nearest of the low type; finite ones stay finite.

    Returns: the numbers in the low type, same shape, and how many became zero or were cut to the largest.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = wide.astype(low.numpy())
    beyond = np.isfinite(wide) & ~np.isfinite(rounded)
    if beyond.any():
        rounded[beyond] = np.copysign(np.float32(low.max), wide[beyond]).astype(low.numpy())
    to_zero = int(np.count_nonzero((rounded == 0) & (wide != 0)))
    return rounded, WeightLoss(name, wide.size, to_zero, int(np.count_nonzero(beyond)))


def _set_type_attribute(node: ir.Node, low: ir.DataType) -> None:
    """Change the attribute by which a Cast or ConstantOfShape makes float32."""
    if node.domain != "" or not is_float(node.outputs[0]):
        return
    if node.op_type == "Cast":
        node.attributes["to"] = ir.AttrInt64("to", low.value)
    elif node.op_type == "ConstantOfShape":
        given = node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else np.zeros(1, np.float32)
        filled = ir.Tensor(to_low(given, low)[0], dtype=low)
        node.attributes["value"] = ir.AttrTensor("value", filled)
