"""Each case of the pass's docstring on a graph written for it; integers make every product exact in any order."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.graph.passes.hoist_token_selection import hoist_token_selection
from tests.graph.onnx_graphs import integers, nodes, parse, rows_computed, run

FIRST = np.array(0)
W = integers(1, 4, 4)
X = integers(2, 2, 9, 4)


def hoisted(graph: str, feeds: dict[str, np.ndarray] | None = None, ulps: int = 0, **weights: np.ndarray) -> ir.Model:
    """Apply the pass and prove that the result is a valid model with the same interface and the same outputs.

    Args:
        ulps: units in the last place by which outputs may differ, relative to the largest; 0 for bit-equal.
    """
    feeds = {"x": X} if feeds is None else feeds
    model = parse(graph, **weights)
    before, interface = run(model, feeds), [(v.name, v.dtype) for v in (*model.graph.inputs, *model.graph.outputs)]
    assert hoist_token_selection(model) is model
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [(v.name, v.dtype) for v in (*model.graph.inputs, *model.graph.outputs)] == interface
    after = run(model, feeds)
    for name, expected in before.items():
        assert after[name].dtype == expected.dtype
        bound = ulps * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=bound)
    return model


def test_case_1_scalar_index_keeps_its_axis_until_the_end():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y) { h = MatMul(x, w) r = Relu(h) y = Gather<axis = 1>(r, i) }", w=W, i=FIRST
    )
    assert [node.op_type for node in model.graph] == ["Gather", "MatMul", "Relu", "Squeeze"]
    assert rows_computed(model, "MatMul", 1) == [1]


@pytest.mark.parametrize(
    ("start", "end", "step", "rows"),
    [(0, 2, 1, 2), (1, 9, 3, 3), (-2, 2**63 - 1, 1, 2), (-1, -9, -3, 3), (-3, -1, 1, 2)],
)
def test_case_2_slices_keep_their_axis(start, end, step, rows):
    bounds = {name: np.array([n]) for name, n in (("s", start), ("e", end), ("a", 1), ("t", step))}
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,M,4] y) { h = MatMul(x, w) y = Slice(h, s, e, a, t) }", w=W, **bounds
    )
    assert rows_computed(model, "MatMul", 1) == [rows]


def test_case_2_vector_index_keeps_its_axis_and_order():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4,4] y) { h = MatMul(x, w) y = Gather<axis = 1>(h, i) }",
        w=W,
        i=np.array([7, 0, 7, 3]),
    )
    assert rows_computed(model, "MatMul", 1) == [3]


UNARY = """
    Abs Ceil Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Relu Round Selu
    Sigmoid Sign Softplus Softsign Sqrt Tanh ThresholdedRelu Cos Sin
"""


def test_case_3_elementwise():
    """All in one graph, each with a selection and an output of its own."""
    operators = UNARY.split()
    outputs = ", ".join(f"float[2,4] y_{op}" for op in operators)
    lines = " ".join(f"h_{op} = {op}(p) y_{op} = Gather<axis = 1>(h_{op}, i)" for op in operators)
    # A vectorised kernel and its remainder loop may round an element differently, by a few units.
    model = hoisted(f"g (float[2,9,4] x) => ({outputs}) {{ p = Abs(x) {lines} }}", ulps=8, i=FIRST)
    assert rows_computed(model, "Abs", 1) == [1, 1]
    assert all(rows_computed(model, op, 1) == [1] for op in operators if op != "Abs")


@pytest.mark.parametrize(
    ("body", "ulps"),
    [
        ("h = Cast<to = 11>(x)", 0),
        ("h = Softmax<axis = -1>(x)", 8),
        ("h = Softmax<axis = 0>(x)", 8),
        ("h = LogSoftmax<axis = 2>(x)", 8),
        ("h = LayerNormalization<axis = -1>(x, scale, shift)", 8),
        ("h = LayerNormalization<axis = 2>(x, scale)", 8),
        ("h = ReduceSum<keepdims = 1>(x, last)", 0),
        ("h = ReduceMax<keepdims = 1>(x, first)", 0),
        ("h = CumSum(x, last)", 0),
        ("h = Clip(x, low)", 0),
        ("h = Split<axis = 2, num_outputs = 1>(x)", 0),
    ],
)
def test_case_3_within_one_row(body, ulps):
    kind = "double" if "Cast" in body else "float"
    model = hoisted(
        f"g (float[2,9,4] x) => (float[2,9,4] whole, {kind}[A,C] y) "
        f"{{ {body} y = Gather<axis = 1>(h, i) whole = Identity(x) }}",
        ulps=ulps,
        i=FIRST,
        scale=integers(3, 4),
        shift=integers(4, 4),
        last=np.array([2]),
        first=np.array([0]),
        low=np.array(-1, np.float32),
    )
    assert next(iter(model.graph)).op_type == "Gather"


def test_case_3_reduction_without_kept_axes():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2] y) { h = ReduceSum<keepdims = 0>(x, a) y = Gather<axis = 1>(h, i) }",
        i=FIRST,
        a=np.array([-1]),
    )
    assert [node.op_type for node in model.graph] == ["Gather", "ReduceSum", "Squeeze"]


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (2, 1, 4), (1, 1, 1)])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Pow"])
def test_case_4_broadcast_operand_is_used_whole(op, shape):
    bias = np.abs(integers(5, *shape)) + 1
    model = hoisted(
        f"g (float[2,9,4] x) => (float[2,4] y) {{ h = {op}(x, b) y = Gather<axis = 1>(h, i) }}",
        ulps=8 if op == "Pow" else 0,
        b=bias,
        i=FIRST,
    )
    assert [node.op_type for node in model.graph] == ["Gather", op, "Squeeze"]
    assert model.graph.initializers["b"].shape.numpy() == shape


def test_case_5_residual_selects_in_both():
    model = hoisted(
        "g (float[2,9,4] x, float[2,9,4] z) => (float[2,4] y) "
        "{ h = MatMul(x, w) s = Add(h, z) t = Where(c, s, x) y = Gather<axis = 1>(t, i) }",
        feeds={"x": X, "z": integers(6, 2, 9, 4)},
        w=W,
        c=np.array([True, False, True, False]),
        i=FIRST,
    )
    assert rows_computed(model, "Add", 1) == [1]
    assert len(nodes(model, "Gather")) == 2  # x once for its two uses, z once


def test_case_6_only_the_selected_queries_are_computed():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y) { "
        "q = MatMul(x, w) k = MatMul(x, w2) v = MatMul(x, w3) kt = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, kt) "
        "m = Mul(s, c) p = Softmax(m) a = MatMul(p, v) y = Gather<axis = 1>(a, i) }",
        ulps=16,
        w=W,
        w2=integers(7, 4, 4),
        w3=integers(8, 4, 4),
        c=np.array(0.0625, np.float32),
        i=FIRST,
    )
    assert rows_computed(model, "MatMul", 1) == [1, 9, 9, 1, 1]


def test_case_6_columns_come_from_the_right_operand():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y) { t = Transpose<perm = [0, 2, 1]>(x) h = MatMul(w, t) "
        "y = Gather<axis = 2>(h, i) }",
        w=W,
        i=FIRST,
    )
    assert rows_computed(model, "MatMul", 2) == [1]


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("bias", [(4,), (1, 4), (9, 1), (9, 4)])
def test_case_6_gemm(trans_a, bias):
    shape = "[4,9]" if trans_a else "[9,4]"
    model = hoisted(
        f"g (float{shape} x) => (float[4] y) {{ h = Gemm<transA = {trans_a}, transB = 1>(x, w, b) "
        "y = Gather<axis = 0>(h, i) }",
        feeds={"x": X[0].T.copy() if trans_a else X[0]},
        w=W,
        b=integers(9, *bias),
        i=np.array(5),
    )
    assert rows_computed(model, "Gemm", 0) == [1]


def test_case_6_einsum():
    model = hoisted(
        'g (float[2,9,4] x) => (float[2,4] y) { h = Einsum<equation = "bne,ef->bnf">(x, w) '
        "y = Gather<axis = 1>(h, i) }",
        w=W,
        i=FIRST,
    )
    assert rows_computed(model, "Einsum", 1) == [1]


@pytest.mark.parametrize("shape", [[2, 9, 2, 2], [0, 9, 2, 2], [0, -1, 2, 2], [-1, 9, 2, 2], [2, 9, -1, 2]])
def test_case_7_reshape_and_transpose_keep_the_axis(shape):
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,2,2] y) "
        "{ h = Reshape(x, shape) t = Transpose<perm = [0, 2, 1, 3]>(h) y = Gather<axis = 2>(t, i) }",
        shape=np.array(shape),
        i=np.array(-1),
    )
    assert rows_computed(model, "Reshape", 1) == [1]


def test_case_7_unsqueeze_squeeze_expand():
    model = hoisted(
        "g (float[2,1,4] x) => (float[2,4] y) { e = Expand(x, s) u = Unsqueeze(e, a) n = Neg(u) q = Squeeze(n, a) "
        "y = Gather<axis = 1>(q, i) }",
        feeds={"x": X[:, :1]},
        s=np.array([2, 9, 4]),
        a=np.array([1]),
        i=np.array(4),
    )
    assert rows_computed(model, "Expand", 1) == [1]
    assert rows_computed(model, "Neg", 2) == [1]


def test_case_8_a_value_needed_whole_is_cut_there():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y, float[2,4] total) { h = MatMul(x, w) r = Relu(h) "
        "total = ReduceSum<keepdims = 0>(h, a) y = Gather<axis = 1>(r, i) }",
        w=W,
        a=np.array([1]),
        i=FIRST,
    )
    assert rows_computed(model, "MatMul", 1) == [9]
    assert rows_computed(model, "Relu", 1) == [1]


def test_case_8_a_graph_output_stays_whole():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,9,4] h, float[2,4] y) "
        "{ h = MatMul(x, w) r = Relu(h) y = Gather<axis = 1>(r, i) }",
        w=W,
        i=FIRST,
    )
    assert rows_computed(model, "MatMul", 1) == [9]


def test_case_8_a_use_in_a_subgraph_needs_the_whole_value():
    model = hoisted(
        "g (float[2,9,4] x, bool c) => (float[2,4] y, float[2,9,4] z) { h = MatMul(x, w) y = Gather<axis = 1>(h, i) "
        "z = If (c) <then_branch = g1 () => (float[2,9,4] a) { a = Neg(h) }, "
        "else_branch = g2 () => (float[2,9,4] b) { b = Abs(h) }> }",
        feeds={"x": X, "c": np.array(True)},
        w=W,
        i=FIRST,
    )
    assert rows_computed(model, "MatMul", 1) == [9]


def test_case_8_a_shape_needs_the_whole_value():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y, int64[3] n) { h = Relu(x) n = Shape(h) y = Gather<axis = 1>(h, i) }",
        i=FIRST,
    )
    assert rows_computed(model, "Relu", 1) == [9]


def test_case_8_selection_that_is_itself_an_output():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,1,4] y) { h = MatMul(x, w) y = Gather<axis = 1>(h, i) }", w=W, i=np.array([3])
    )
    assert rows_computed(model, "MatMul", 1) == [1]


def test_case_9_two_selections_move_as_one():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y, float[2,4] z) "
        "{ h = MatMul(x, w) r = Neg(h) y = Gather<axis = 1>(r, i) z = Gather<axis = 1>(r, j) }",
        w=W,
        i=FIRST,
        j=np.array(1),
    )
    assert rows_computed(model, "MatMul", 1) == [2]


def test_case_9_selections_of_different_axes_do_not_move():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y, float[2,9] z) "
        "{ h = Neg(x) y = Gather<axis = 1>(h, i) z = Gather<axis = 2>(h, i) }",
        i=FIRST,
    )
    assert rows_computed(model, "Neg", 1) == [9]


def test_case_10_selection_of_a_selection():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y) "
        "{ h = MatMul(x, w) s = Slice(h, start, end, axis) r = Neg(s) y = Gather<axis = 1>(r, i) }",
        w=W,
        start=np.array([1]),
        end=np.array([9]),
        axis=np.array([1]),
        i=np.array(-3),
    )
    assert rows_computed(model, "MatMul", 1) == [1]
    assert not nodes(model, "Slice")


@pytest.mark.parametrize(("index", "kept"), [(0, []), (1, ["MatMul"]), (-1, ["MatMul"])])
def test_case_11_concat_passes_on_to_one_operand(index, kept):
    model = hoisted(
        "g (float[2,9,4] x, float[2,1,4] cls) => (float[2,4] y) "
        "{ h = MatMul(x, w) c = Concat<axis = 1>(cls, h) r = Relu(c) y = Gather<axis = 1>(r, i) }",
        feeds={"x": X, "cls": integers(10, 2, 1, 4)},
        w=W,
        i=np.array(index),
    )
    assert [node.op_type for node in nodes(model, "MatMul")] == kept
    assert not nodes(model, "Concat")


def test_case_11_from_the_end_past_a_free_length():
    model = hoisted(
        "g (float[2,N,4] x, float[2,2,4] last) => (float[2,4] y) "
        "{ h = MatMul(x, w) c = Concat<axis = 1>(h, last) r = Relu(c) y = Gather<axis = 1>(r, i) }",
        feeds={"x": X, "last": integers(10, 2, 2, 4)},
        w=W,
        i=np.array(-2),
    )
    assert not nodes(model, "MatMul")


def test_case_11_rows_of_two_operands_stay_behind_the_concat():
    model = hoisted(
        "g (float[2,9,4] x, float[2,1,4] cls) => (float[2,2,4] y) "
        "{ c = Concat<axis = 1>(cls, x) r = Relu(c) y = Gather<axis = 1>(r, i) }",
        feeds={"x": X, "cls": integers(10, 2, 1, 4)},
        i=np.array([0, 1]),
    )
    assert rows_computed(model, "Concat", 1) == [10]
    assert rows_computed(model, "Relu", 1) == [2]


def test_case_11_concat_on_another_axis_is_token_wise():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,8] y) { h = Concat<axis = 2>(x, x) y = Gather<axis = 1>(h, i) }", i=FIRST
    )
    assert rows_computed(model, "Concat", 1) == [1]


def test_case_12_positions_shrink_and_a_shared_constant_stays():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y, float[2,9,4] z) "
        "{ h = Add(x, p) y = Gather<axis = 1>(h, i) z = Mul(x, p) }",
        p=integers(11, 1, 9, 4),
        i=np.array(2),
    )
    shapes = {tuple(value.shape.numpy()) for value in model.graph.initializers.values() if value.shape.rank() == 3}
    assert shapes == {(1, 9, 4), (1, 1, 4)}


def test_case_12_a_constant_that_a_caller_may_override_is_not_folded():
    text = "g (float[2,9,4] x, float[1,9,4] p) => (float[2,4] y) { h = Add(x, p) y = Gather<axis = 1>(h, i) }"
    model = hoisted(text, p=integers(11, 1, 9, 4), i=FIRST)
    feeds = {"x": X, "p": integers(12, 1, 9, 4)}
    np.testing.assert_array_equal(run(model, feeds)["y"], (feeds["x"] + feeds["p"])[:, 0])


@pytest.mark.parametrize("index", [0, -1, -9])
def test_case_13_and_14_free_lengths(index):
    text = (
        "g (float[B,N,4] x, float[B,N,4] z) => (float[B,4] y) { h = MatMul(x, w) r = Reshape(h, shape) "
        "t = Transpose<perm = [0, 2, 1, 3]>(r) a = Transpose<perm = [0, 2, 1, 3]>(t) f = Reshape(a, flat) "
        "s = Add(f, z) y = Gather<axis = 1>(s, i) }"
    )
    shapes = {"shape": np.array([0, 0, 2, 2]), "flat": np.array([0, 0, 4])}
    model = hoisted(text, feeds={"x": X, "z": X}, w=W, i=np.array(index), **shapes)
    assert rows_computed(model, "MatMul", 1) == [1]
    for length in (9, 20):
        x = integers(13, 3, length, 4)
        expected = run(parse(text, w=W, i=np.array(index), **shapes), {"x": x, "z": x})["y"]
        np.testing.assert_array_equal(run(model, {"x": x, "z": x})["y"], expected)


@pytest.mark.parametrize(("start", "end", "rows"), [(0, 1, 1), (-1, 2**63 - 1, 1), (-2, -1, 1), (0, 2, None)])
def test_case_14_slices_of_a_free_length(start, end, rows):
    model = hoisted(
        "g (float[B,N,4] x) => (float[B,M,4] y) { h = MatMul(x, w) y = Slice(h, s, e, a) }",
        w=W,
        s=np.array([start]),
        e=np.array([end]),
        a=np.array([1]),
    )
    moved = nodes(model, "MatMul")[0].outputs[0].shape[1]
    assert (moved if isinstance(moved, int) else None) == rows


def test_case_14_operands_of_unrelated_free_lengths_are_not_crossed():
    model = hoisted(
        "g (float[2,N,4] x, float[2,M,4] z) => (float[2,4] y) { h = Add(x, z) y = Gather<axis = 1>(h, i) }",
        feeds={"x": X, "z": X[:, :1]},
        i=np.array(5),
    )
    assert [node.op_type for node in model.graph] == ["Add", "Gather"]


def test_case_15_half_of_the_rows_or_more_stay():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,8,4] y) { h = MatMul(x, w) y = Slice(h, s, e, a) }",
        w=W,
        s=np.array([1]),
        e=np.array([9]),
        a=np.array([1]),
    )
    assert [node.op_type for node in model.graph] == ["MatMul", "Slice"]


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batch", ["2", "B"])
def test_case_16_a_product_on_merged_rows(batch, trans_b):
    model = hoisted(
        f"g (float[9,{batch},2,2] x) => (float[{batch},4] y) "
        f"{{ m = Reshape(x, merged) h = Gemm<transB = {trans_b}>(m, w, b) s = Reshape(h, split) r = Relu(s) "
        "y = Gather<axis = 0>(r, i) }",
        feeds={"x": integers(2, 9, 2, 2, 2)},
        merged=np.array([-1, 4]),
        split=np.array([9, -1, 4]),
        w=W,
        b=integers(15, 4),
        i=FIRST,
    )
    assert [node.op_type for node in model.graph] == ["Gather", "Reshape", "MatMul", "Add", "Relu", "Squeeze"]


@pytest.mark.parametrize("attributes", ["alpha = 2.0", "beta = 2.0"])
def test_case_16_a_scaled_product_is_left(attributes):
    model = hoisted(
        f"g (float[9,2,4] x) => (float[2,4] y) {{ m = Reshape(x, merged) h = Gemm<{attributes}>(m, w, b) "
        "s = Reshape(h, split) y = Gather<axis = 0>(s, i) }",
        feeds={"x": integers(2, 9, 2, 4)},
        merged=np.array([18, 4]),
        split=np.array([9, 2, 4]),
        w=W,
        b=integers(15, 4),
        i=FIRST,
    )
    assert [node.op_type for node in model.graph] == ["Reshape", "Gemm", "Reshape", "Gather"]


MIXING = {
    "reduction": "h = ReduceMean(x, a)  g = Add(h, x)",
    "softmax": "g = Softmax<axis = 1>(x)",
    "normalisation": "g = LayerNormalization<axis = 1>(x, scale)",
    "contraction": "t = Transpose<perm = [0, 2, 1]>(x) c = MatMul(t, x) h = MatMul(x, c) g = CumSum(h, a)",
    "merge": "m = Reshape(x, shape) g = Reshape(m, back)",
    "concat": "k = Concat<axis = 1>(x, x) g = Slice(k, s, e, a)",
    "cumulation": "g = CumSum(x, a)",
    "gather by tensor": "ids = Cast<to = 7>(x) g = GatherElements<axis = 1>(x, zeros)",
}


@pytest.mark.parametrize("what", MIXING)
def test_case_17_what_mixes_tokens_is_not_crossed(what):
    model = hoisted(
        f"g (float[2,9,4] x) => (float[2,4] y) {{ {MIXING[what]} r = Relu(g) y = Gather<axis = 1>(r, i) }}",
        ulps=64,
        a=np.array([1]),
        scale=integers(14, 9, 4),
        shape=np.array([2, 36]),
        back=np.array([2, 9, 4]),
        s=np.array([4]),
        e=np.array([13]),
        zeros=np.zeros((2, 9, 4), np.int64),
        i=np.array(6),
    )
    assert rows_computed(model, "Relu", 1) == [1]
    before_relu = nodes(model, "Relu")[0].inputs[0].producer()
    assert before_relu.op_type == "Gather" or what in ("reduction", "concat")
    if what == "reduction":
        assert rows_computed(model, "ReduceMean", 1) == [1]
        assert nodes(model, "ReduceMean")[0].inputs[0].name == "x"


def test_case_17_an_axis_of_the_same_length_is_not_yet_the_same_axis():
    model = hoisted(
        "g (float[2,9,4] x) => (float[8] y) { h = Reshape(x, shape) r = Relu(h) y = Gather<axis = 0>(r, i) }",
        shape=np.array([9, 8]),
        i=FIRST,
    )
    assert [node.op_type for node in model.graph] == ["Reshape", "Gather", "Relu", "Squeeze"]


def test_case_17_an_operator_of_another_domain_is_not_crossed():
    model = parse(
        "g (float[2,9,12] q, float[2,9,4] x) => (float[2,3,4] y) <float[2,9,4] a, float[2,1,4] r> "
        "{ a, m = infsa.EnergyPool<heads = 2>(q, x) r = Relu(a) y = Gather<axis = 1>(r, i) }",
        i=np.array([0, 1, 2]),
    )
    hoist_token_selection(model)
    assert "rows" not in nodes(model, "EnergyPool")[0].attributes


def attended(model: str, rows: int = 0, **weights: np.ndarray) -> ir.Model:
    """Apply the pass to a graph with one attention, of `rows` rows beforehand, `a`, and return it with its bodies."""
    before = parse(
        "g (float[2,9,12] qkv) => (float[2,M,4] y) "
        f"<float[2,9,4] a, float[2,9,4] r> {{ a = infsa.NeumannAttention<{ATTENTION}, rows = {rows}>(qkv) {model} }}",
        **weights,
    )
    after = ir.from_proto(ir.to_proto(before))
    hoist_token_selection(after)
    feeds = {"qkv": integers(3, 2, 9, 12)}
    (expected,), (found,) = (run(attach_ops(m), feeds).values() for m in (before, after))
    bound = 8 * np.finfo(np.float32).eps * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    return after


ATTENTION = "heads = 2, rho = 0.5, hops = 2, eps = 1e-6"


def rows_of_attention(model: ir.Model) -> tuple[int, int]:
    (node,) = nodes(model, "NeumannAttention")
    return node.attributes["rows"].as_int(), node.outputs[0].shape[1]


@pytest.mark.parametrize(
    ("index", "left"),
    [([0], ["Relu"]), ([0, 1], ["Relu"]), ([2, 0, 1], ["Gather", "Relu"]), ([0, 0], ["Relu", "Gather"])],
)
def test_case_18_the_first_tokens_of_attention(index, left):
    model = attended("r = Relu(a) y = Gather<axis = 1>(r, i)", i=np.array(index))
    assert rows_of_attention(model) == (len(set(index)), len(set(index)))
    kept = [node.op_type for node in model.graph if node.op_type not in ("NeumannAttention", "Identity")]
    assert kept == left


def test_case_18_slices_and_two_uses():
    model = attended(
        "r = Relu(a) s = Slice(r, zero, two, one) t = Gather<axis = 1>(a, i) y = Add(s, t)",
        zero=np.array([0]),
        one=np.array([1]),
        two=np.array([2]),
        i=np.array([2]),
    )
    assert rows_of_attention(model) == (3, 3)


def test_case_18_the_scalar_index_leaves_a_squeeze():
    model = parse(
        "g (float[B,N,12] qkv) => (float[B,4] y) <float[B,N,4] a> "
        f"{{ a = infsa.NeumannAttention<{ATTENTION}>(qkv) y = Gather<axis = 1>(a, i) }}",
        i=FIRST,
    )
    hoist_token_selection(model)
    assert [node.op_type for node in model.graph] == ["NeumannAttention", "Squeeze"]
    assert rows_of_attention(model) == (1, 1)


@pytest.mark.parametrize(
    ("selection", "weights"),
    [
        ("y = Gather<axis = 1>(r, i)", {"i": np.array([1])}),
        ("y = Gather<axis = 1>(r, i)", {"i": np.array([0, 2])}),
        ("y = Gather<axis = 1>(r, i)", {"i": np.array([-1])}),
        ("n = Size(qkv) m = Unsqueeze(n, z) i = Sub(m, m) y = Gather<axis = 1>(r, i)", {"z": np.array([0])}),
        ("y = Slice(r, s, e, o, t)", {"s": np.array([0]), "e": np.array([4]), "o": np.array([1]), "t": np.array([2])}),
        ("y = Slice(r, s, e, o)", {"s": np.array([0]), "e": np.array([5]), "o": np.array([1])}),
        ("b = Gather<axis = 1>(r, i) c = ReduceMax(a, o) y = Add(b, c)", {"i": np.array([0]), "o": np.array([1])}),
    ],
    ids=["second", "a gap", "last", "dynamic", "step", "more than half", "needed whole"],
)
def test_case_18_other_selections_stay_behind_the_attention(selection, weights):
    assert rows_of_attention(attended(f"r = Relu(a) {selection}", **weights)) == (0, 9)


def test_a_second_run_changes_nothing():
    model = hoisted(
        "g (float[2,9,4] x) => (float[2,4] y) { h = MatMul(x, w) r = Relu(h) y = Gather<axis = 1>(r, i) }", w=W, i=FIRST
    )
    once = ir.to_proto(model).SerializeToString()
    assert ir.to_proto(hoist_token_selection(model)).SerializeToString() == once


def test_old_opsets_are_refused():
    model = parse("g (float[2,9,4] x) => (float[2,9,4] y) { y = Relu(x) }")
    model.graph.opset_imports[""] = 17
    with pytest.raises(ModelError, match="opset 17"):
        hoist_token_selection(model)
