"""Retyping to fp16 and bf16: what is low, what stays float32, where the casts stand, and that the numbers hold."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.graph.precision.fp32_islands import FEEDS, FOLLOWS, KEEP_FP32
from infsa_deploy.graph.precision.retype import LOW_TYPES, PrecisionReport, WeightLoss, retype, to_low
from tests.export.small_vits import small_vit, traced
from tests.graph.onnx_graphs import nodes, normals, parse, run

FLOAT, FP16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
X = normals(0, 2, 9, 4)


def retyped(
    graph: str, dtype: str = "fp16", keep_io: bool = True, **weights: np.ndarray
) -> tuple[ir.Model, PrecisionReport]:
    """Parse, retype and check the result as a model whose every recorded type is the inferred one."""
    model = parse(graph, **weights)
    report = retype(model, dtype, keep_io=keep_io)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model, report


def ops(model: ir.Model) -> list[str]:
    """Operators in order."""
    return [node.op_type for node in model.graph]


def types(model: ir.Model, op_type: str) -> list[ir.DataType]:
    """Output types of each node of one operator."""
    return [node.outputs[0].dtype for node in nodes(model, op_type)]


MLP = (
    "g (float[2,9,4] x) => (float[2,9,4] y) { n = LayerNormalization<epsilon = 1e-6>(x, s, b) h = MatMul(n, w) "
    "a = Gelu(h) y = Add(a, x) }"
)


def mlp_weights() -> dict[str, np.ndarray]:
    return {"s": normals(1, 4), "b": normals(2, 4), "w": normals(3, 4, 4)}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_weights_and_activations_are_low_and_casts_stand_at_the_edges(dtype):
    model, report = retyped(MLP, dtype, **mlp_weights())
    low = LOW_TYPES[dtype]
    assert ops(model) == ["Cast", "LayerNormalization", "MatMul", "Gelu", "Add", "Cast"]
    assert {value.dtype for value in model.graph.initializers.values()} == {low}
    assert {node.outputs[0].dtype for node in list(model.graph)[:-1]} == {low}
    assert [v.dtype for v in (*model.graph.inputs, *model.graph.outputs)] == [FLOAT, FLOAT]
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == ["x", "y"]
    assert (report.casts, report.weights, report.kept_fp32, report.losses) == (2, 3, {}, ())
    assert (report.weights_bytes_before, report.weights_bytes_after) == (96, 48)


def test_inputs_and_outputs_change_type_if_asked():
    model, report = retyped(MLP, keep_io=False, **mlp_weights())
    assert ops(model) == ["LayerNormalization", "MatMul", "Gelu", "Add"]
    assert [v.dtype for v in (*model.graph.inputs, *model.graph.outputs)] == [FP16, FP16]
    assert [v.name for v in (*model.graph.inputs, *model.graph.outputs)] == ["x", "y"]
    assert report.casts == 0


def test_layer_normalization_keeps_its_float32_accumulator():
    # Values up to 600: their squares leave fp16, the result is of order 1.
    model, _ = retyped(MLP, **mlp_weights())
    assert nodes(model, "LayerNormalization")[0].attributes.get("stash_type") in (None, ir.AttrInt64("stash_type", 1))
    exact = run(parse(MLP, **mlp_weights()), {"x": 300 * X})["y"]
    got = run(model, {"x": 300 * X})["y"]
    # Roundings to fp16 of x, n, h, a, y and of each weight, h a sum of 4: at most 16 half-ulps of the largest.
    assert np.abs(got - exact).max() <= 16 * 2.0**-11 * np.abs(exact).max()


@pytest.mark.parametrize("op", sorted(name for name in KEEP_FP32 if name.startswith("Reduce")))
def test_sums_stay_float32(op):
    model, report = retyped(
        f"g (float[2,9,4] x) => (float[2,9] y) {{ h = Relu(x) r = {op}<keepdims = 0>(h, a) y = Relu(r) }}",
        a=np.array([2]),
    )
    assert types(model, op) == [FLOAT]
    assert types(model, "Relu") == [FP16, FP16]
    assert list(report.kept_fp32.values()) == [KEEP_FP32[op]]
    assert ops(model) == ["Cast", "Relu", "Cast", op, "Cast", "Relu", "Cast"]


def test_a_normalisation_written_out_is_one_island():
    model, report = retyped(
        "g (float[2,9,4] x) => (float[2,9,4] y) { h = Relu(x) m = ReduceMean(h, a) d = Sub(h, m) p = Pow(d, two) "
        "v = ReduceMean(p, a) e = Add(v, eps) s = Sqrt(e) n = Div(d, s) y = MatMul(n, w) }",
        a=np.array([2]),
        two=np.array(2.0, np.float32),
        eps=np.array(1e-12, np.float32),
        w=normals(3, 4, 4),
    )
    inside = ("ReduceMean", "Sub", "Pow", "Add", "Sqrt", "Div")
    assert all(kind == FLOAT for op in inside for kind in types(model, op))
    assert types(model, "MatMul") == [FP16]
    assert set(report.kept_fp32.values()) == {KEEP_FP32["ReduceMean"], FOLLOWS}
    assert report.losses == ()  # the epsilon is only read in float32
    assert report.casts == 4


def test_the_square_before_a_sum_is_float32():
    model, report = retyped(
        "g (float[2,9,4] x) => (float[2,9,4] y) { h = Relu(x) q = Mul(h, h) s = ReduceSum(q, a) y = Div(h, s) }",
        a=np.array([2]),
    )
    assert types(model, "Mul") == [FLOAT]
    assert FEEDS in report.kept_fp32.values()


def test_positions_are_computed_in_float32():
    # A column number 4097 / 2 is rounded in fp16 to 2048, where 2048.5 floors the same, but 4099 / 2 to 2050.
    text = (
        "g (float[1,N] x) => (float[1,M] y) { n = Shape(x) i = Gather(n, one) c = Range(zero, limit, step) "
        "f = Div(c, two) g = Floor(f) k = Cast<to = 7>(g) y = Gather<axis = 1>(x, k) }"
    )
    weights = {
        "one": np.array(1),
        "zero": np.array(0, np.float32),
        "limit": np.array(9000, np.float32),
        "step": np.array(1, np.float32),
        "two": np.array(2, np.float32),
    }
    x = (np.arange(4500, dtype=np.float32) % 2048)[None]
    model, _ = retyped(text, **weights)
    np.testing.assert_array_equal(run(model, {"x": x})["y"], run(parse(text, **weights), {"x": x})["y"])


def test_resize_stays_float32_with_its_scales():
    model, report = retyped(
        'g (float[1,4,3,3] x) => (float[1,4,6,6] y) { h = Relu(x) r = Resize<mode = "cubic">(h, , scales) y = Neg(r) }',
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    assert types(model, "Resize") == [FLOAT]
    assert model.graph.initializers["scales"].dtype == FLOAT
    assert list(report.kept_fp32.values()) == [KEEP_FP32["Resize"]]


def test_a_size_turned_to_float_stays_float32_up_to_the_quotient():
    model, _ = retyped(
        "g (float[2,N,4] x) => (float[2,N,4] y) { n = Shape(x) i = Gather(n, one) f = Cast<to = 1>(i) "
        "s = Add(f, half) q = Div(x, s) y = Neg(q) }",
        one=np.array(1),
        half=np.array(0.5, np.float32),
    )
    assert types(model, "Add") == types(model, "Div") == [FLOAT]
    assert types(model, "Neg") == [FP16]


def test_integers_and_booleans_are_left_alone():
    model, _ = retyped(
        "g (float[2,9,4] x, int64[2] i) => (float[2,2,4] y, int64[2] k) { c = Greater(x, z) w = Where(c, x, z) "
        "y = Gather<axis = 1>(w, i) k = Add(i, i) }",
        z=np.array(0, np.float32),
    )
    assert types(model, "Add") == [ir.DataType.INT64]
    assert types(model, "Greater") == [ir.DataType.BOOL]


@pytest.mark.parametrize(("value", "expected"), [(True, FP16), (False, FLOAT)])
def test_a_cast_from_bool_is_low_and_from_a_number_is_not(value, expected):
    kind = "bool" if value else "int32"
    model, _ = retyped(f"g ({kind}[4] c, float[4] x) => (float[4] y) {{ f = Cast<to = 1>(c) y = Add(f, x) }}")
    source = nodes(model, "Cast")
    assert next(node for node in source if node.inputs[0].name == "c").outputs[0].dtype == expected


def test_bodies_of_control_flow_are_retyped():
    text = (
        "g (float[2,4] x, bool c) => (float[2,4] y) { h = MatMul(x, w) z = If (c) "
        "<then_branch = t () => (float[2,4] a) { m = MatMul(h, w) a = Neg(m) }, "
        "else_branch = e () => (float[2,4] b) { s = ReduceSum(h, axes) b = Mul(h, s) }> y = Relu(z) }"
    )
    weights = {"w": normals(1, 4, 4), "axes": np.array([1])}
    model, _ = retyped(text, **weights)
    branch = nodes(model, "If")[0].attributes
    assert [node.outputs[0].dtype for node in branch["then_branch"].as_graph()] == [FP16, FP16]
    assert types(model, "If") == [FP16]
    for chosen in (True, False):
        feeds = {"x": normals(5, 2, 4), "c": np.array(chosen)}
        exact = run(parse(text, **weights), feeds)["y"]
        # x, w, h, m or s, and the result are rounded, the products sums of 4: 16 half-ulps cover them.
        assert np.abs(run(model, feeds)["y"] - exact).max() <= 16 * 2.0**-11 * max(1, np.abs(exact).max())


def test_loops_carry_the_low_type():
    text = (
        "g (float[2,4] x, int64 n) => (float[2,4] y, float[M,2,4] all) { y, all = Loop (n, , x) "
        "<body = b (int64 i, bool go, float[2,4] s) => (bool more, float[2,4] t, float[2,4] out) "
        "{ more = Identity(go) t = MatMul(s, w) out = Relu(t) }> }"
    )
    model, _ = retyped(text, w=normals(1, 4, 4, scale=0.5))
    loop = nodes(model, "Loop")[0]
    assert [value.dtype for value in loop.outputs] == [FP16, FP16]
    body = loop.attributes["body"].as_graph()
    assert [value.dtype for value in body.inputs] == [ir.DataType.INT64, ir.DataType.BOOL, FP16]
    assert run(model, {"x": normals(5, 2, 4), "n": np.array(3)})["all"].shape == (3, 2, 4)


def test_a_weight_read_by_both_kinds_of_node_is_kept_in_both_types():
    model, report = retyped(
        "g (float[4] x) => (float[4] y) { s = ReduceSum(w, a) d = Div(x, s) r = Relu(d) y = Add(r, w) }",
        w=normals(1, 4),
        a=np.array([0]),
    )
    assert sorted(v.dtype.name for v in model.graph.initializers.values()) == ["FLOAT", "FLOAT16", "INT64"]
    assert (report.weights_bytes_before, report.weights_bytes_after) == (16, 24)


def test_bf16_convolution_does_not_exist_in_opset_20():
    text = "g (float[1,3,8,8] x) => (float[1,4,2,2] y) { h = Conv<strides = [4, 4]>(x, w) y = Relu(h) }"
    model, report = retyped(text, "bf16", w=normals(1, 4, 3, 4, 4))
    assert types(model, "Conv") == [FLOAT]
    assert list(report.kept_fp32.values()) == ["ONNX opset 20 has no Conv for BFLOAT16"]
    model, report = retyped(text, "fp16", w=normals(1, 4, 3, 4, 4))
    assert types(model, "Conv") == [FP16]


def test_constants_made_in_the_graph_are_low():
    model, _ = retyped(
        "g (float[2,4] x) => (float[2,4] y) { s = Shape(x) c = ConstantOfShape<value = float[1] {1.5}>(s) "
        "d = Constant<value_float = 0.5>() m = Mul(c, d) y = Add(x, m) }"
    )
    assert types(model, "ConstantOfShape") == [FP16]
    np.testing.assert_array_equal(run(model, {"x": np.zeros((2, 4), np.float32)})["y"], np.full((2, 4), 0.75))


@pytest.mark.parametrize(
    ("dtype", "numbers", "to_zero", "saturated"),
    [
        ("fp16", [2.0**-26, -(2.0**-25), 2.0**-25 * 1.001, 65519.0, 65520.0, -1e38, 0.0, 1.0], 2, 2),
        ("bf16", [2.0**-140, 1e-38, 3.39e38, 3.4e38, 0.0, 1.0, 65520.0, -3.4e38], 1, 2),
    ],
)
def test_elements_out_of_range_are_counted_and_stay_finite(dtype, numbers, to_zero, saturated):
    wide = np.array(numbers, np.float32)
    low, loss = to_low(wide, LOW_TYPES[dtype], "w")
    assert loss == WeightLoss("w", len(numbers), to_zero, saturated)
    assert np.isfinite(low.astype(np.float32)).all()
    assert np.sign(low.astype(np.float32))[np.abs(wide) > 1].tolist() == np.sign(wide)[np.abs(wide) > 1].tolist()


def test_infinities_stay_infinite_and_are_not_counted():
    low, loss = to_low(np.array([np.inf, -np.inf], np.float32), FP16)
    assert (np.isinf(low).all(), loss.saturated) == (True, 0)


def test_losses_are_reported_by_weight():
    _, report = retyped(
        "g (float[4] x) => (float[4] y) { h = Mul(x, tiny) y = Add(h, huge) }",
        tiny=np.array([1e-9, 1, 1, 0], np.float32),
        huge=np.array([1e9, -1e9, 1, 0], np.float32),
    )
    assert report.losses == (WeightLoss("tiny", 4, 1, 0), WeightLoss("huge", 4, 0, 2))


def test_external_weights_are_read_and_their_file_is_not_touched(tmp_path):
    source = tmp_path / "wide.onnx"
    ir.save(parse(MLP, **mlp_weights()), source, external_data="wide.data", size_threshold_bytes=1)
    before = hashlib.sha256((tmp_path / "wide.data").read_bytes()).hexdigest()
    model = ir.load(source)
    retype(model, "fp16")
    target = tmp_path / "low.onnx"
    ir.save(model, target, external_data="low.data", size_threshold_bytes=1)
    assert hashlib.sha256((tmp_path / "wide.data").read_bytes()).hexdigest() == before
    assert (tmp_path / "low.data").stat().st_size < (tmp_path / "wide.data").stat().st_size
    onnx.checker.check_model(target, full_check=True)
    for name, value in ir.load(target).graph.initializers.items():
        np.testing.assert_array_equal(value.const_value.numpy(), mlp_weights()[name].astype(np.float16))


def test_functions_of_other_domains_are_refused():
    model = parse("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    body = ir.Graph([value := ir.val("a")], [value], nodes=[], opset_imports={"": 20})
    function = ir.Function("mine", "Twice", graph=body, attributes=[])
    model.functions[function.identifier()] = function
    with pytest.raises(ModelError, match=r"mine\.Twice"):
        retype(model, "fp16")


def test_a_tensor_of_unknown_type_is_refused():
    model = parse("g (float[4] x) => (float[4] y) { h = other.Op(x) y = Relu(h) }")
    with pytest.raises(ModelError, match="'h'"):
        retype(model, "fp16")


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
@pytest.mark.parametrize("deployable", [True, False])
def test_logits_are_as_close_as_those_of_eager_fp16(variant, deployable):
    """Bound: twice the error of the same network run by PyTorch in fp16, both against float64."""
    model = attach_ops(traced(variant, deployable))
    attributes = {node.name: dict(node.attributes) for node in model.graph if node.domain == "infsa"}
    retype(model, "fp16")
    assert {node.name: dict(node.attributes) for node in model.graph if node.domain == "infsa"} == attributes
    image = normals(4, 4, 3, 32, 32)
    with torch.no_grad():
        exact = small_vit(variant).double()(torch.from_numpy(image).double()).numpy()
        eager = small_vit(variant).half()(torch.from_numpy(image).half()).float().numpy()
    got = run(model, {"image": image})["logits"]
    assert np.abs(got - exact).max() <= 2 * np.abs(eager - exact).max()


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_bf16_is_a_valid_graph_with_low_ops(variant):
    """ONNX Runtime's CPU provider has no bfloat16 MatMul, so this checks structure and types only."""
    model = attach_ops(traced(variant))
    retype(model, "bf16")
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    custom = [node for node in model.graph if node.domain == "infsa"]
    assert custom
    assert {value.dtype for node in custom for value in (*node.inputs, *node.outputs)} == {ir.DataType.BFLOAT16}
    assert set(types(model, "MatMul")) == {ir.DataType.BFLOAT16}


def test_bf16_numbers_by_the_reference_evaluator():
    model, _ = retyped(MLP, "bf16", **mlp_weights())
    exact = run(parse(MLP, **mlp_weights()), {"x": X})["y"]
    (got,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": X})
    # As for fp16 above, with half an ulp of bfloat16.
    assert np.abs(np.asarray(got, np.float32) - exact).max() <= 16 * 2.0**-8 * np.abs(exact).max()
