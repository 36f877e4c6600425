"""Random graphs of token-wise and token-mixing operators: neither pass ever changes what they compute.

Data are whole numbers and every operator used maps whole numbers to whole numbers, all below 2^53 in float64, so
sums are exact in any order and the outputs have to be equal bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from infsa_deploy.graph.passes.hoist_token_selection import hoist_token_selection
from infsa_deploy.graph.passes.tile_tokens import tile_tokens
from tests.graph.onnx_graphs import integers, run

B, N, E, H = 2, 7, 4, 2


@dataclass
class Recipe:
    """A graph under construction: nodes, constants, and the token tensors [B, N, E] made so far."""

    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    tokens: list[str]

    def add(self, op_type: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))


def _small(recipe: Recipe, value: str) -> str:
    """Bring values back to -7..7, so that whatever depth the graph has stays exact."""
    return recipe.add("Mod", value, recipe.constant(np.array(8.0)), fmod=1)


def _binary(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    op = draw(st.sampled_from(["Add", "Sub", "Mul", "Max"]))
    shape = draw(st.sampled_from([(E,), (1, E), (B, 1, E), (N, E), (1, N, 1), (B, N, E), ()]))
    other = recipe.constant(integers(len(recipe.nodes), *shape, dtype=np.float64))
    return recipe.add(op, *draw(st.permutations([x, other])))


def _residual(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    return recipe.add(draw(st.sampled_from(["Add", "Sub", "Mul"])), x, draw(st.sampled_from(recipe.tokens)))


def _unary(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    return recipe.add(draw(st.sampled_from(["Relu", "Neg", "Abs", "Sign", "Identity", "Floor"])), x)


def _linear(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    weight = recipe.constant(integers(len(recipe.nodes), E, E, dtype=np.float64))
    return recipe.add("MatMul", x, weight)


def _heads(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    split = recipe.add("Reshape", x, recipe.ints(*draw(st.sampled_from([(B, N, H, 2), (0, 0, H, -1), (0, -1, H, 2)]))))
    swapped = recipe.add("Transpose", split, perm=[0, 2, 1, 3])
    back = recipe.add("Transpose", recipe.add("Neg", swapped), perm=[0, 2, 1, 3])
    return recipe.add("Reshape", back, recipe.ints(0, draw(st.sampled_from([0, -1, N])), E))


def _attention(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    keys = recipe.add("Transpose", draw(st.sampled_from(recipe.tokens)), perm=[0, 2, 1])
    scores = _small(recipe, recipe.add("MatMul", x, keys))
    return recipe.add("MatMul", recipe.add("Relu", scores), draw(st.sampled_from(recipe.tokens)))


def _mean_over_tokens(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    pooled = recipe.add("ReduceSum", x, recipe.ints(1), keepdims=1)
    if draw(st.booleans()):
        pooled = recipe.add("Expand", pooled, recipe.ints(B, N, E))
    return recipe.add("Add", x, pooled)


def _row_reduction(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    keep = draw(st.booleans())
    row = recipe.add("ReduceMax", x, recipe.ints(2), keepdims=int(keep))
    return recipe.add("Sub", x, row if keep else recipe.add("Unsqueeze", row, recipe.ints(-1)))


def _shift_tokens(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    cut = draw(st.integers(1, N - 1))
    head = recipe.add("Slice", x, recipe.ints(0), recipe.ints(cut), recipe.ints(1))
    tail = recipe.add("Slice", x, recipe.ints(cut - N), recipe.ints(2**63 - 1), recipe.ints(1))
    return recipe.add("Concat", tail, head, axis=1)


def _merge(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    flat = recipe.add("Reshape", x, recipe.ints(*draw(st.sampled_from([(B, N * E), (B * N, E), (-1,)]))))
    return recipe.add("Reshape", recipe.add("Neg", flat), recipe.ints(B, N, E))


def _infsa(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    """Attention with a stand-in for its body, in whole numbers: it too mixes all tokens and cuts its output last."""
    qkv = recipe.add("Concat", x, draw(st.sampled_from(recipe.tokens)), draw(st.sampled_from(recipe.tokens)), axis=2)
    attributes = {"heads": H, "rho": 0.5, "hops": 1, "eps": 0.0}
    attributes |= {"rows": 0} if draw(st.booleans()) else {}
    return recipe.add("NeumannAttention", qkv, domain="infsa", **attributes)


STAND_IN = """
<domain: "infsa", opset_import: ["" : 20]>
NeumannAttention <heads, rho, hops, eps, rows: int = 0> (qkv) => (y) {
    q, k, v = Split<axis = 2, num_outputs = 3>(qkv)
    axis = Constant<value_ints = [1]>()
    zero = Constant<value_ints = [0]>()
    total = ReduceSum<keepdims = 1>(v, axis)
    more = Sub(q, k)
    whole = Add(more, total)
    n = Shape<start = 1, end = 2>(qkv)
    given = Constant<value_int: int = @rows>()
    asked = Reshape(given, axis)
    cut = Greater(asked, zero)
    kept = Where(cut, asked, n)
    y = Slice(whole, zero, kept, axis)
}
"""


STEPS = [
    _binary,
    _residual,
    _unary,
    _linear,
    _heads,
    _attention,
    _mean_over_tokens,
    _row_reduction,
    _shift_tokens,
    _merge,
    _infsa,
]


def _select(draw: st.DrawFn, recipe: Recipe, x: str) -> str:
    if draw(st.booleans()):
        index = draw(st.one_of(st.integers(-N, N - 1), st.lists(st.integers(-N, N - 1), min_size=1, max_size=4)))
        return recipe.add("Gather", x, recipe.constant(np.array(index, np.int64)), axis=draw(st.sampled_from([1, -2])))
    start, end, step = draw(st.integers(-N, N)), draw(st.integers(-N - 1, N)), draw(st.sampled_from([1, 2, -1, -2]))
    return recipe.add("Slice", x, recipe.ints(start), recipe.ints(end), recipe.ints(-2), recipe.ints(step))


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """A graph of up to 10 steps from two inputs [B, N, E], with up to 3 selections and perhaps a whole output."""
    recipe = Recipe([], {}, ["x", "z"])
    for _ in range(draw(st.integers(1, 10))):
        step = draw(st.sampled_from(STEPS))
        recipe.tokens.append(_small(recipe, step(draw, recipe, draw(st.sampled_from(recipe.tokens[-3:])))))
    outputs = [_select(draw, recipe, draw(st.sampled_from(recipe.tokens[-2:]))) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        outputs.append(draw(st.sampled_from(recipe.tokens[2:])))
    free = draw(st.booleans())
    shape = ["B", "N", E] if free else [B, N, E]
    graph = helper.make_graph(
        recipe.nodes,
        "random",
        [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, shape) for name in ("x", "z")],
        [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in recipe.constants.items()],
        value_info=[
            helper.make_tensor_value_info(node.output[0], onnx.TensorProto.DOUBLE, shape)
            for node in recipe.nodes
            if node.domain == "infsa"
        ],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("infsa", 1)]
    body = onnx.parser.parse_function(STAND_IN)
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=[body])


def assert_unchanged(proto: onnx.ModelProto, model: ir.Model) -> None:
    """The model is valid and gives what the original gives, bit for bit."""
    onnx.checker.check_model(ir.to_proto(model))
    feeds = {name: integers(seed, B, N, E, dtype=np.float64) for seed, name in enumerate(("x", "z"))}
    before, after = run(ir.from_proto(proto), feeds), run(model, feeds)
    assert list(after) == list(before)
    for name, expected in before.items():
        np.testing.assert_array_equal(after[name], expected)


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_hoisting_random_graphs(proto):
    assert_unchanged(proto, hoist_token_selection(ir.from_proto(proto)))


@settings(max_examples=200, deadline=None)
@given(graphs(), st.integers(1, N), st.booleans())
def test_tiling_random_graphs(proto, tile, hoisted):
    model = ir.from_proto(proto)
    if hoisted:
        hoist_token_selection(model)
    assert_unchanged(proto, tile_tokens(model, tile))
