"""The pass after the export pipeline, on our own networks with attention as custom ops."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.graph.passes.hoist_token_selection import hoist_token_selection
from tests.export.small_vits import DEPTH, RELATIVE, TOKENS, traced
from tests.graph.onnx_graphs import nodes, normals, rows_computed, run


def pair(variant: str) -> tuple[ir.Model, ir.Model]:
    """One small network exported without and with the pass."""
    return attach_ops(traced(variant)), attach_ops(hoist_token_selection(traced(variant)))


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_logits_stay_and_the_last_feed_forward_shrinks(variant):
    plain, moved = pair(variant)
    onnx.checker.check_model(ir.to_proto(moved), full_check=True)
    assert rows_computed(plain, "Gelu", 1) == [TOKENS] * DEPTH
    assert rows_computed(moved, "Gelu", 1) == [TOKENS, 1]
    feeds = {"image": normals(0, 2, 3, 32, 32)}
    expected = run(plain, feeds)["logits"]
    for optimized in (False, True):
        np.testing.assert_allclose(
            run(moved, feeds, optimized)["logits"], expected, rtol=0, atol=RELATIVE * np.abs(expected).max()
        )


@pytest.mark.parametrize(("variant", "op"), [("linear", "EnergyPool"), ("linear", "CentralityPool")])
def test_pools_still_see_every_token(variant, op):
    _, moved = pair(variant)
    assert [node.inputs[0].shape[1] for node in nodes(moved, op)] == [TOKENS] * DEPTH


def test_pure_attention_still_sees_every_token():
    _, moved = pair("pure")
    attention = nodes(moved, "NeumannAttention")
    assert [node.inputs[0].shape[1] for node in attention] == [TOKENS] * DEPTH
    assert [node.attributes["rows"].as_int() for node in attention] == [0, 1]
    assert [node.outputs[0].shape[1] for node in attention] == [TOKENS, 1]
    assert [use.node.op_type for use in attention[-1].outputs[0].uses()] == ["MatMul"]
