"""Operations and bytes of a graph against the same sums done by hand."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from infsa_deploy.config import ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from infsa_deploy.graph.cost.operations import count_bytes, count_flops, count_flops_by_type

# infvit_linear_4l at 224: 14 x 14 patches of 16 x 16 x 3 and a class token; E 1024, 16 heads of 64, MLP 4096, 4 layers
P, N, E, H, D, M, L, K = 196, 197, 1024, 16, 64, 4096, 4, 1000


@pytest.fixture(scope="module")
def infvit(tmp_path_factory):
    path = tmp_path_factory.mktemp("infvit") / "model.onnx"
    export_reference(load_reference(ModelSource(model="infvit_linear_4l")), path)
    return ir.load(path)


def test_operations_of_infvit_linear_4l_at_224(infvit):
    flops = count_flops(infvit, {"batch": 1})
    patches = 2 * P * E * (3 * 16 * 16)
    queries = L * 2 * N * E * E
    pooled_through_wq_wk_wv = L * 3 * 2 * H * E * D
    pooled_query_on_bk = L * 2 * H * D
    output_projection = L * 2 * E * E  # of one vector an image
    mlp = (L - 1) * 2 * 2 * N * E * M + 2 * 2 * E * M  # in the last layer the class token alone goes through it
    assert flops["Conv"] == patches == 308_281_344
    assert flops["MatMul"] == queries + pooled_through_wq_wk_wv + pooled_query_on_bk + output_projection + mlp
    assert flops["EnergyPool"] == L * (2 * N * E + 2 * N * H * E) == 27_435_008
    assert flops["CentralityPool"] == L * (2 * N * H * E + 2 * N * H * E) == 51_642_368
    assert flops["Gemm"] == 2 * E * K
    assert count_flops_by_type(infvit, {"batch": 1}) == {"fp32": 12_007_636_992}


def test_bytes_of_infvit_linear_4l_at_224(infvit):
    moved = count_bytes(infvit, {"batch": 8})
    layer = (
        (E * E + E)  # query projection of the tokens
        + 3 * E * E  # Wq, Wk, Wv again, by head, for the pooled tokens
        + 3 * E  # and their biases
        + (E * E + E)  # output projection
        + (E * M + M) + (M * E + E)  # MLP
    )  # fmt: skip
    embedding = E * 3 * 16 * 16 + E + E + N * E  # patches, their bias, class token, positions
    norm = 2 * E  # untrained: all nine LayerNormalizations hold ones and zeros, which are stored once
    head = E * K + K
    indices = sum(tensor.nbytes for tensor in _constants(infvit) if tensor.dtype == ir.DataType.INT64)
    assert moved["weights"] - indices == 4 * (L * layer + embedding + norm + head)
    assert moved["inputs"] == 8 * 3 * 224 * 224 * 4
    assert moved["outputs"] == 8 * K * 4


def _constants(model):
    tensors = [value.const_value for value in model.graph.initializers.values()]
    return tensors + [node.outputs[0].const_value for node in model.graph if node.op_type == "Constant"]


def graph(*nodes, weights=(), batch="batch", inner=()):
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        list(nodes),
        "small",
        [value("x", TensorProto.FLOAT, [batch, 6])],
        [value("y", TensorProto.FLOAT, [batch, 4])],
        list(weights),
        value_info=[value(*each) for each in inner],
    )
    return ir.from_proto(helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)]))


def test_activations_are_written_once_and_read_once_a_use():
    model = graph(
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["h", "r"], ["y"]),
        weights=[helper.make_tensor("w", TensorProto.FLOAT, [6, 4], [0.0] * 24)],
        inner=[("h", TensorProto.FLOAT, ["batch", 4]), ("r", TensorProto.FLOAT, ["batch", 4])],
    )
    h, r = 3 * 4 * 4, 3 * 4 * 4
    assert count_bytes(model, {"batch": 3}) == {
        "weights": 6 * 4 * 4,
        "inputs": 3 * 6 * 4,
        "outputs": 3 * 4 * 4,
        "activations": (1 + 2) * h + (1 + 1) * r,
    }


def test_integer_products_are_counted_apart():
    model = graph(
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
        weights=[
            helper.make_tensor("w", TensorProto.INT8, [6, 5], [0] * 30),
            helper.make_tensor("v", TensorProto.FLOAT, [5, 4], [0.0] * 20),
        ],
        inner=[
            ("q", TensorProto.UINT8, ["batch", 6]),
            ("scale", TensorProto.FLOAT, []),
            ("zero", TensorProto.UINT8, []),
            ("i", TensorProto.INT32, ["batch", 5]),
            ("f", TensorProto.FLOAT, ["batch", 5]),
        ],
    )
    assert count_flops_by_type(model, {"batch": 2}) == {"int8": 2 * 2 * 6 * 5, "fp32": 2 * 2 * 5 * 4}


def test_products_of_dequantised_values_run_in_int8():
    scale, zero = (
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.1]),
        helper.make_tensor("z", TensorProto.INT8, [], [0]),
    )
    weight = helper.make_tensor("w", TensorProto.INT8, [6, 4], [0] * 24)
    model = graph(
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["dx"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"]),
        helper.make_node("MatMul", ["dx", "dw"], ["y"]),
        weights=[scale, zero, weight],
        inner=[
            ("q", TensorProto.INT8, ["batch", 6]),
            ("dx", TensorProto.FLOAT, ["batch", 6]),
            ("dw", TensorProto.FLOAT, [6, 4]),
        ],
    )
    assert count_flops_by_type(model, {"batch": 1}) == {"int8": 2 * 6 * 4}
