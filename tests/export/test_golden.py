"""Everything that leaves the export against the authors' own float64 outputs."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from infsa_models.attention import InfSAAttention
from safetensors.torch import load_file

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.rewrite.deployable import rewritten, to_deployable
from infsa_deploy.export.sources import load_reference
from tests.models.golden_attention import CASES, golden_inputs

DEPLOYABLE_FP32, ONNX_FP32 = 2e-5, 1e-4  # of the largest value

each_variant = pytest.mark.parametrize("variant", ["pure", "linear"])


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@each_variant
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_attention_cases_through_the_deployable_form(variant, case, golden):
    """With q, k, v as inputs of identity projections, x = (q, k, v) concatenated and D-wide heads picked out."""
    B, H, N, D = case["shape"]
    q, k, v = (t.float().transpose(1, 2).reshape(B, N, H * D) for t in golden_inputs(case))
    attention = InfSAAttention(3 * H * D, 3 * H, variant)
    pick = torch.zeros(3, H * D, 3 * H * D)
    for index in range(3):
        pick[index, :, index * H * D : (index + 1) * H * D] = torch.eye(H * D)
    with torch.no_grad():
        for layer, rows in zip((attention.q_proj, attention.k_proj, attention.v_proj), pick, strict=True):
            layer.weight.zero_()
            layer.weight[: H * D] = rows
            layer.bias.zero_()
        attention.out_proj.weight.copy_(torch.eye(3 * H * D))
        attention.out_proj.bias.zero_()
        attention.rho_logit.fill_(float(np.log(case["rho"] / (1 - case["rho"]))))
        found = to_deployable(attention)(torch.cat([q, k, v], dim=-1))[..., : H * D]
    expected = np.load(golden / "attention.npz")[f"{case['name']}/{variant}_infsa"].transpose(0, 2, 1, 3)
    expected = expected.reshape(B, expected.shape[1], H * D)
    if case["name"] == "all_scores_negative":
        assert found.abs().max() == 0
    else:
        assert relative(found.numpy().astype(np.float64), expected) <= DEPLOYABLE_FP32


@each_variant
def test_the_authors_module(variant, golden):
    state = load_file(golden / f"module_{variant}_infsa.safetensors")
    attention = InfSAAttention(96, 3, variant)
    attention.load_state_dict(state)
    arrays = np.load(golden / f"module_{variant}_infsa.npz")
    x = torch.from_numpy(arrays["x"])
    with torch.no_grad():
        found = to_deployable(attention)(x).expand_as(x).numpy()
    assert relative(found, arrays["y"]) <= DEPLOYABLE_FP32


@each_variant
@pytest.mark.parametrize("fold", [True, False])
def test_the_authors_vit_in_onnx_runtime(variant, fold, golden, tmp_path):
    path = tmp_path / "model.onnx"
    source = ModelSource(weights=str(golden / f"torchvision_vit_{variant}_infsa.safetensors"))
    metadata = export_reference(load_reference(source), path, ExportConfig(fold=fold)).metadata
    assert (metadata.variant, metadata.form) == (variant, "ops" if fold else "reference")
    arrays = np.load(golden / f"torchvision_vit_{variant}_infsa.npz")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"image": arrays["x"]})
    assert relative(logits, arrays["y"]) <= ONNX_FP32
    for batch in (1, 3, 64):
        repeated = np.repeat(arrays["x"][:1], batch, axis=0)
        (again,) = session.run(None, {"image": repeated})
        assert relative(again, np.repeat(arrays["y"][:1], batch, axis=0)) <= ONNX_FP32


def test_adapter_is_transparent(golden):
    """The deployable of a foreign module takes and returns what nn.MultiheadAttention does."""
    from tests.export.authors_attention import ForeignAttention

    torch.manual_seed(0)
    attention = ForeignAttention(24, 3, "pure_infsa").eval()
    adapted = to_deployable(attention)
    assert rewritten(adapted)
    x = torch.randn(2, 9, 24)
    with torch.no_grad():
        torch.testing.assert_close(adapted(x, x, x)[0], attention(x, x, x)[0])
        torch.testing.assert_close(adapted(query=x, key=x, value=x)[0], attention(x, x, x)[0])
