"""Small ONNX graphs for the tests of graph passes: written as text, run by ONNX Runtime, counted."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

Arrays = dict[str, np.ndarray]


def parse(graph: str, **weights: np.ndarray) -> ir.Model:
    """A model of opset 20 from the text of its graph (see onnx.parser) and its initializers."""
    header = '<ir_version: 10, opset_import: ["" : 20, "infsa" : 1]>\n'
    proto = onnx.parser.parse_model(header + graph)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.from_proto(proto)


def integers(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    """Whole numbers from -4 to 4: sums and products of a few layers are exact in float32, in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def normals(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Standard normal float32 numbers times `scale`."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def run(model: ir.Model, feeds: Arrays, optimized: bool = False) -> Arrays:
    """All outputs by name, on one CPU thread; each operator as written unless `optimized`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(model)
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def nodes(model: ir.Model, op_type: str) -> list[ir.Node]:
    """The nodes of one operator in the main graph."""
    return [node for node in model.graph if node.op_type == op_type]


def rows_computed(model: ir.Model, op_type: str, axis: int) -> list[int]:
    """The length of one output axis of each node of an operator, in order."""
    return [node.outputs[0].shape[axis] for node in nodes(model, op_type)]


def matmul_flops(model: ir.Model) -> int:
    """Two operations a multiply-add of every MatMul and Gemm, from freshly inferred static shapes."""
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(model), strict_mode=False, data_prop=True)
    fresh = ir.from_proto(proto)
    total = 0
    for node in (*nodes(fresh, "MatMul"), *nodes(fresh, "Gemm")):
        transposed = node.op_type == "Gemm" and "transA" in node.attributes
        inner = node.inputs[0].shape[0 if transposed and node.attributes["transA"].as_int() else -1]
        total += 2 * math.prod(node.outputs[0].shape.numpy()) * inner
    return total
