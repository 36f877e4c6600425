"""`export --attention-maps`: the same maps from every form, at the cost stated and no other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from infsa_models.checkpoint import save_vit
from torch import nn

import infsa_deploy
from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.evaluate.agreement import cosines
from infsa_deploy.export.attention_maps import with_attention_maps
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.rewrite.deployable import to_reference
from infsa_deploy.export.sources import Reference, load_reference
from infsa_deploy.graph.store import weights_bytes
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.sessions.eager import EagerSession
from infsa_deploy.runtime.sessions.ort import OrtSession
from infsa_deploy.validation.against_reference import validate_model
from infsa_deploy.validation.inputs import Plan
from tests.export.authors_attention import ForeignClassifier
from tests.graph.onnx_graphs import rows_computed

FORMS = [
    ("linear", {}),
    ("linear", {"power_iterations": 3}),
    ("pure", {}),
    ("pure", {"hops": 3}),
    ("pure", {"hops": "inf"}),
    ("softmax", {}),
]
COST = {"linear": {}, "pure": {"NeumannAttention": 2}, "softmax": {"MatMul": 2, "Softmax": 2}}
WEIGHTS_OF = ("MatMul", "Gemm", "Conv", "NeumannAttention", "EnergyPool", "CentralityPool", "Softmax")


@pytest.mark.parametrize(
    ("variant", "depth", "fold"),
    [(*form, fold) for form in FORMS for fold in (True, False) if fold or form[1].get("hops") != "inf"],
)  # the resolvent has no ONNX operator: all hops are exported on ops only
def test_onnx_runtime_gives_the_maps_of_eager(variant, depth, fold, tiny, export):
    reference = tiny(variant, **depth)
    path, _ = export(reference, fold=fold, attention_maps=True)
    session = OrtSession(path, threads=1)
    eager = EagerSession(with_attention_maps(reference.module, reference), reference.image)
    feeds = {"image": np.random.default_rng(3).standard_normal((5, 3, 16, 24), dtype=np.float32)}
    expected, found = eager(feeds), session(feeds)
    assert [(info.name, info.shape) for info in session.outputs] == [
        ("logits", ("batch", 5)),
        ("attention", ("batch", 2, 3, 2, 3)),
    ]
    assert np.abs(found["attention"] - expected["attention"]).max() <= 1e-4
    assert cosines(found["attention"], expected["attention"]).min() >= 0.9999
    assert expected["attention"].sum() > 1


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_what_maps_cost(variant, tiny, export):
    reference = tiny(variant, embed_dim=96)  # weights large enough that folding would copy them
    (path, without), (_, with_maps) = export(reference), export(reference, attention_maps=True)
    counts = [Counter(node.op_type for node in model.graph) for model in (without, with_maps)]
    more = {name: counts[1][name] - counts[0][name] for name in WEIGHTS_OF if counts[1][name] != counts[0][name]}
    assert more == COST[variant]
    few = 200  # shapes and axes, not weights
    assert weights_bytes(with_maps) - weights_bytes(without) < few
    assert path.exists()


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_hoisting_still_narrows_the_last_block(variant, tiny, export):
    _, model = export(tiny(variant), attention_maps=True)
    assert rows_computed(model, "Gelu", axis=1) == [7, 1]


def test_hoisting_keeps_the_keys_of_the_last_softmax(tiny, export):
    _, model = export(tiny("softmax"), attention_maps=True)
    assert rows_computed(model, "Gelu", axis=1) == [7, 1]
    softmaxes = [node.outputs[0].shape for node in model.graph if node.op_type == "Softmax"]
    assert all(shape[-1] == 7 for shape in softmaxes)
    assert sorted(shape[-2] for shape in softmaxes) == [1, 1, 1, 7]  # maps and last block: the class token's row only


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_validate_proves_the_maps_too(variant, dtype, tiny, tmp_path):
    weights, path = tmp_path / "m.safetensors", tmp_path / "m.onnx"
    save_vit(tiny(variant).module, weights)
    reference = load_reference(ModelSource(weights=str(weights)))
    export_reference(reference, path, ExportConfig(attention_maps=True, dtype=dtype))
    report = validate_model(path, Plan(real=4, random=2), threads=1)
    assert [c.output for c in report.comparisons] == ["logits", "attention"] * 2
    assert report.passed


def test_tiles(tiny, export):
    reference = tiny("linear", power_iterations=2)
    feeds = {"image": np.random.default_rng(3).standard_normal((2, 3, 16, 24), dtype=np.float32)}
    whole, tiled = (
        OrtSession(export(reference, attention_maps=True, tile_tokens=tile)[0], threads=1)(feeds) for tile in (None, 2)
    )
    np.testing.assert_allclose(tiled["attention"], whole["attention"], atol=1e-5)
    np.testing.assert_allclose(tiled["logits"], whole["logits"], atol=1e-4)


def test_any_size_has_no_maps(tiny, tmp_path):
    config = ExportConfig(attention_maps=True, dynamic_size=True)
    with pytest.raises(UsageError, match="a model of any size"):
        export_reference(tiny("linear"), tmp_path / "m.onnx", config)


def test_a_fixed_batch_and_narrow_outputs(tiny, export):
    path, _ = export(tiny("linear"), attention_maps=True, static_batch=2, dtype="fp16", keep_io=False)
    (_, attention) = OrtSession(path, threads=1).outputs
    assert (attention.shape, attention.dtype) == ((2, 2, 3, 2, 3), "float16")


def test_a_foreign_module(tmp_path):
    torch.manual_seed(0)
    module = ForeignClassifier().eval()
    path = tmp_path / "m.onnx"
    infsa_deploy.export(module, (torch.zeros(1, 3, 32, 40),), path, config=ExportConfig(attention_maps=True))
    image = ImageSpec(3, 32, 40, (0.5,) * 3, (0.5,) * 3)
    reference = Reference(module, "foreign", "linear", {}, image, (), ModelSource())
    pixels = torch.randn(2, 3, 32, 40)
    with torch.no_grad():
        logits, maps = with_attention_maps(to_reference(module), reference)(pixels)
    found = OrtSession(path, threads=1)({"image": pixels.numpy()})
    np.testing.assert_allclose(found["logits"], logits, atol=1e-4)
    np.testing.assert_allclose(found["attention"], maps, atol=1e-4)


class _TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = ForeignClassifier()

    def forward(self, image: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.classifier(image) + bias


def test_what_has_no_maps(tmp_path):
    options = {"path": tmp_path / "m.onnx", "config": ExportConfig(attention_maps=True)}
    with pytest.raises(UsageError, match="2 inputs"):
        infsa_deploy.export(_TwoInputs(), (torch.zeros(1, 3, 32, 40), torch.zeros(1, 1)), **options)
    module = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(80, 5))
    image = ImageSpec(3, 32, 40, (0.5,) * 3, (0.5,) * 3)
    reference = Reference(module, "plain", "softmax", {}, image, tuple("abcde"), ModelSource())
    with pytest.raises(ModelError, match="no attention whose map is known"):
        export_reference(reference, **options)
    assert not list(tmp_path.iterdir())
