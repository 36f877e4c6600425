"""Tiling: the same numbers whatever the tile, no wide tensor of all tokens left, and what stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from infsa_deploy.errors import UsageError
from infsa_deploy.export.dynamic_size import trace_dynamic_size
from infsa_deploy.export.rewrite.proven import rewrite
from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.graph.passes.clean import fold_constants
from infsa_deploy.graph.passes.hoist_token_selection import hoist_token_selection
from infsa_deploy.graph.passes.tile_tokens import tile_tokens
from infsa_deploy.graph.precision.retype import retype
from infsa_deploy.records.model import ImageSpec
from tests.export.small_vits import DEPTH, RELATIVE, TOKENS, small_vit, traced
from tests.graph.onnx_graphs import integers, nodes, normals, parse, run

X = integers(0, 2, 10, 4)
WEIGHTS = {"up": integers(1, 4, 16), "down": integers(2, 16, 4), "bias": integers(3, 16)}
MLP = (
    "g (float[{B},{N},4] x) => (float[{B},{N},4] y) "
    "{{ h = MatMul(x, up) a = Add(h, bias) r = Relu(a) d = MatMul(r, down) y = Add(x, d) }}"
)


def loops(model: ir.Model) -> list[ir.Graph]:
    """The bodies of the model's loops."""
    return [node.attributes["body"].as_graph() for node in nodes(model, "Loop")]


def check(model: ir.Model) -> None:
    """Structure and types, by ONNX's checker."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize(("batch", "tokens"), [("2", "10"), ("B", "N")])
@pytest.mark.parametrize("tile", [1, 3, 5, 9])
def test_whole_tiles_and_a_shorter_last_one(batch, tokens, tile):
    text = MLP.format(B=batch, N=tokens)
    model = parse(text, **WEIGHTS)
    tile_tokens(model, tile)
    check(model)
    assert not nodes(model, "MatMul")
    assert [node.op_type for node in loops(model)[0]].count("MatMul") == 2
    for length in (10,) if tokens == "10" else (1, 10, 17):
        x = integers(4, 2, length, 4)
        np.testing.assert_array_equal(run(model, {"x": x})["y"], run(parse(text, **WEIGHTS), {"x": x})["y"])


def test_tokens_that_fit_one_tile_stay():
    model = parse(MLP.format(B=2, N=10), **WEIGHTS)
    tile_tokens(model, 10)
    assert [node.op_type for node in model.graph] == ["MatMul", "Add", "Relu", "MatMul", "Add"]


def test_cheap_work_alone_stays():
    model = parse("g (float[2,10,4] x) => (float[2,10,4] y) { h = Relu(x) y = Neg(h) }")
    tile_tokens(model, 3)
    assert [node.op_type for node in model.graph] == ["Relu", "Neg"]


def test_a_normalisation_is_computed_again_but_a_product_is_not():
    text = (
        "g (float[2,10,4] x) => (float[2,4] p, float[2,4] q) { n = Relu(x) a = MatMul(n, w) "
        "s = MatMul(a, w) t = MatMul(a, v) p = ReduceMax<keepdims = 0>(s, one) q = ReduceMax<keepdims = 0>(t, one) }"
    )
    weights = {"w": integers(1, 4, 4), "v": integers(2, 4, 4), "one": np.array([1])}
    model = parse(text, **weights)
    tile_tokens(model, 4)
    check(model)
    assert [sum(node.op_type == "MatMul" for node in body) for body in loops(model)] == [1, 1, 1]
    expected = run(parse(text, **weights), {"x": X})
    for name, value in run(model, {"x": X}).items():
        np.testing.assert_array_equal(value, expected[name])


def test_softmax_attention_holds_a_tile_of_rows():
    text = (
        "g (float[2,10,4] x) => (float[2,10,4] y) { q = MatMul(x, w) k = MatMul(x, v) t = Transpose<perm = [0,2,1]>(k) "
        "s = MatMul(q, t) m = Relu(s) a = MatMul(m, k) y = Add(a, x) }"
    )
    weights = {"w": integers(1, 4, 4), "v": integers(2, 4, 4)}
    model = parse(text, **weights)
    tile_tokens(model, 4)
    check(model)
    np.testing.assert_array_equal(run(model, {"x": X})["y"], run(parse(text, **weights), {"x": X})["y"])
    assert all(
        value.shape is None or value.shape[-1] != 10
        for node in model.graph
        for value in node.outputs
        if value.shape is not None and len(value.shape) == 3 and value.shape[-2] == 10
    )


def test_positions_and_heads_are_cut_along():
    text = (
        "g (float[2,10,4] x) => (float[2,10,4] y) { a = Add(x, p) h = MatMul(a, w) s = Reshape(h, split) "
        "t = Transpose<perm = [0, 2, 1, 3]>(s) n = Neg(t) b = Transpose<perm = [0, 2, 1, 3]>(n) m = Reshape(b, back) "
        "y = MatMul(m, w) }"
    )
    weights = {
        "p": integers(1, 1, 10, 4),
        "w": integers(2, 4, 4),
        "split": np.array([2, 10, 2, 2]),
        "back": np.array([2, 10, 4]),
    }
    model = parse(text, **weights)
    tile_tokens(model, 4)
    check(model)
    assert len(loops(model)) == 1
    np.testing.assert_array_equal(run(model, {"x": X})["y"], run(parse(text, **weights), {"x": X})["y"])


@pytest.mark.parametrize("tokens", ["10", "N"])
def test_pools_add_up_tiles(tokens):
    text = (
        f"g (float[2,{tokens},4] x) => (float[2,2,4] p, float[2,2] m, float[2,2,4] r, float[2,2] k) "
        "{ q = MatMul(x, w) p, m = infsa.EnergyPool<heads = 2, eps = 0.5>(q, x) "
        "r, k = infsa.CentralityPool<eps = 0.25>(x, p, m) }"
    )
    expected = run(attach_ops(parse(text, w=normals(1, 4, 4))), {"x": X})
    model = attach_ops(parse(text, w=normals(1, 4, 4)))
    tile_tokens(model, 3)
    check(model)
    assert not [node for node in model.graph if node.domain == "infsa"]
    assert not nodes(model, "MatMul")
    for name, value in run(model, {"x": X}).items():
        # Sums of 10 positive weights and of 10 products, each off by at most 10 eps in either order.
        np.testing.assert_allclose(value, expected[name], rtol=40 * 2.0**-23, atol=40 * 2.0**-23)


def test_a_pool_whose_centrality_is_read_stays_whole():
    text = (
        "g (float[2,10,4] x, float[2,2,4] u, float[2,2] c) => (float[2,2,4] r, float[2,2,10] a) "
        "{ n = MatMul(x, w) r, k, a = infsa.CentralityPool<eps = 0.25>(n, u, c) }"
    )
    model = attach_ops(parse(text, w=normals(1, 4, 4)))
    tile_tokens(model, 3)
    check(model)
    assert len(nodes(model, "CentralityPool")) == 1
    assert len(loops(model)) == 1


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
@pytest.mark.parametrize("deployable", [True, False])
def test_models_give_the_same_logits(variant, deployable):
    feeds = {"image": normals(0, 2, 3, 32, 32)}
    expected = run(attach_ops(traced(variant, deployable)), feeds)["logits"]
    model = attach_ops(hoist_token_selection(traced(variant, deployable)))
    tile_tokens(model, 5)
    check(model)
    for optimized in (False, True):
        logits = run(model, feeds, optimized)["logits"]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=RELATIVE * np.abs(expected).max())


def test_linear_holds_nothing_wider_than_the_residual_stream():
    model = attach_ops(hoist_token_selection(traced("linear")))
    tile_tokens(model, 5)
    tokens = [
        node.op_type
        for node in model.graph
        for value in node.outputs
        if value.shape is not None and TOKENS in list(value.shape)
    ]
    # The embedding, and one result a block: the last block has none, its one token needs no tiling.
    assert sorted(tokens) == ["Add", "Concat", "ConcatFromSequence"]
    assert len(loops(model)) == DEPTH * 2 + DEPTH - 1


def test_one_tiled_graph_serves_any_image_size():
    image = ImageSpec(3, 32, 32, (0.5,) * 3, (0.5,) * 3)
    rewriting = rewrite(small_vit("linear"), (torch.zeros(1, 3, 32, 32),), fold=True, static_batch=None)
    model, _ = trace_dynamic_size(rewriting, image)
    plain = ir.to_proto(attach_ops(hoist_token_selection(fold_constants(model))))
    tiled = tile_tokens(ir.from_proto(plain), 5)
    check(tiled)
    assert len(loops(tiled)) == DEPTH * 2 + DEPTH - 1
    for height, width in ((16, 24), (32, 32), (64, 40)):
        feeds = {"image": normals(0, 2, 3, height, width)}
        expected = run(ir.from_proto(plain), feeds)["logits"]
        np.testing.assert_allclose(
            run(tiled, feeds)["logits"], expected, rtol=0, atol=RELATIVE * np.abs(expected).max()
        )


def test_a_retyped_model_accumulates_in_float32():
    model = attach_ops(hoist_token_selection(traced("linear")))
    retype(model, "fp16")
    feeds = {"image": normals(0, 2, 3, 32, 32)}
    expected = run(model, feeds)["logits"]
    tile_tokens(model, 5)
    check(model)
    carried = [value.dtype for body in loops(model) for value in body.inputs[2:] if len(body.inputs) == 4]
    assert set(carried) == {ir.DataType.FLOAT}
    # The pools differ by float32 rounding, which may tip a rounding to fp16; that many ulps of the logits' scale.
    np.testing.assert_allclose(
        run(model, feeds)["logits"], expected, rtol=0, atol=4 * 2.0**-11 * np.abs(expected).max()
    )


def test_an_impossible_tile_is_refused():
    with pytest.raises(UsageError, match="tile of 0"):
        tile_tokens(parse(MLP.format(B=2, N=10), **WEIGHTS), 0)


def test_a_second_axis_of_the_tokens_length_keeps_it():
    """Scores [B, 1, N, N] of one head, merged to [B, N, N]: the last axis is whole though the tile's rows are fewer."""
    text = (
        "g (float[B,N,4] x) => (float[B,N,4] y) <float[B,N,N] r> { t = Transpose<perm = [0, 2, 1]>(x) q = MatMul(x, w) "
        "s = MatMul(q, t) u = Unsqueeze(s, one) n = Relu(u) r = Reshape(n, shape) y = MatMul(r, x) }"
    )
    weights = {"w": integers(1, 4, 4), "one": np.array([1]), "shape": np.array([0, -1, 0])}
    model = parse(text, **weights)
    tile_tokens(model, 5)
    check(model)
    np.testing.assert_array_equal(run(model, {"x": X})["y"], run(parse(text, **weights), {"x": X})["y"])
