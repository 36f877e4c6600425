"""The pass after the export pipeline, on our own networks with attention as custom ops."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from infsa_models.vit import ViT, ViTConfig

from infsa_deploy.export.attach_ops import attach_ops
from infsa_deploy.export.deployable import to_deployable
from infsa_deploy.export.fold_constants import fold_constants
from infsa_deploy.export.hoist_token_selection import hoist_token_selection
from infsa_deploy.export.trace import trace
from tests.export.onnx_graphs import nodes, normals, rows_computed, run
from tests.export.test_hoist_models import RELATIVE

TOKENS = 17


def pair(variant: str) -> tuple[ir.Model, ir.Model]:
    """One small network exported without and with the pass."""
    plain, moved = (ir.from_proto(exported(variant)) for _ in range(2))
    return attach_ops(plain), attach_ops(hoist_token_selection(moved))


@functools.cache
def exported(variant: str) -> onnx.ModelProto:
    """The graph before the pass."""
    torch.manual_seed(0)
    vit = ViT(ViTConfig(variant, (32, 32), 8, 3, 32, 3, 4, 128, 10)).eval()
    return ir.to_proto(fold_constants(trace(to_deployable(vit), (torch.zeros(1, 3, 32, 32),))))


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_logits_stay_and_the_last_feed_forward_shrinks(variant):
    plain, moved = pair(variant)
    onnx.checker.check_model(ir.to_proto(moved), full_check=True)
    assert rows_computed(plain, "Gelu", 1) == [TOKENS] * 3
    assert rows_computed(moved, "Gelu", 1) == [TOKENS, TOKENS, 1]
    feeds = {"image": normals(0, 2, 3, 32, 32)}
    expected = run(plain, feeds)["logits"]
    for optimized in (False, True):
        np.testing.assert_allclose(
            run(moved, feeds, optimized)["logits"], expected, rtol=0, atol=RELATIVE * np.abs(expected).max()
        )


@pytest.mark.parametrize(("variant", "op"), [("linear", "EnergyPool"), ("linear", "CentralityPool")])
def test_pools_still_see_every_token(variant, op):
    _, moved = pair(variant)
    assert [node.inputs[0].shape[1] for node in nodes(moved, op)] == [TOKENS] * 3


def test_pure_attention_still_sees_every_token():
    _, moved = pair("pure")
    attention = nodes(moved, "NeumannAttention")
    assert [node.inputs[0].shape[1] for node in attention] == [TOKENS] * 3
    assert [node.attributes["rows"].as_int() for node in attention] == [0, 0, 1]
    assert [node.outputs[0].shape[1] for node in attention] == [TOKENS, TOKENS, 1]
    assert [use.node.op_type for use in attention[-1].outputs[0].uses()] == ["MatMul"]
