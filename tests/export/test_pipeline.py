"""An export as a whole: the graph, its metadata, its files."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import infsa_deploy
from infsa_deploy.config import ExportConfig
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.graph.store import load_model, save_model
from infsa_deploy.ops import OPS_BY_NAME
from infsa_deploy.ops.contract import PLUGIN_ATTRIBUTES
from tests.export.authors_attention import factory, no_attention

NODES = {"linear": {"EnergyPool": 2, "CentralityPool": 2}, "pure": {"NeumannAttention": 2}, "softmax": {}}


@pytest.mark.parametrize("variant", NODES)
def test_two_lives(variant, tiny, export):
    path, model = export(tiny(variant))
    custom = [node for node in model.graph if node.domain == "infsa"]
    assert {name: sum(n.op_type == name for n in custom) for name in NODES[variant]} == NODES[variant]
    assert len(custom) == sum(NODES[variant].values())
    assert {name for _, name, _ in model.functions} == set(NODES[variant])
    for node in custom:
        contract = OPS_BY_NAME[node.op_type].contract
        names = {spec.name for spec in contract.attributes}
        optional = any(spec.optional for spec in contract.outputs)
        assert set(node.attributes) == names | set(PLUGIN_ATTRIBUTES) | ({"plugin_outputs"} if optional else set())
        assert {name: node.attributes[name].value for name in PLUGIN_ATTRIBUTES} == PLUGIN_ATTRIBUTES
    onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_no_fold_keeps_the_reference(variant, tiny, export):
    _, model = export(tiny(variant), fold=False)
    assert not model.functions
    assert not [node for node in model.graph if node.domain]


@pytest.mark.parametrize("options", [{"power_iterations": 3}, {"hops": 4}])
def test_series_depth_reaches_the_graph(options, tiny, export):
    (name,) = options
    variant = "pure" if name == "hops" else "linear"
    reference = tiny(variant, **options)
    path, model = export(reference)
    if variant == "pure":
        assert [n.attributes["hops"].value for n in model.graph if n.op_type == "NeumannAttention"] == [4, 4]
    else:
        assert sum(n.op_type == "CentralityPool" for n in model.graph) == 2 * 3
    image = np.random.default_rng(0).standard_normal((2, 3, 16, 24), dtype=np.float32)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"image": image})
    with torch.no_grad():
        expected = reference.module(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_static_batch(tiny, export):
    _, model = export(tiny("linear"), static_batch=3)
    assert tuple(model.graph.inputs[0].shape) == (3, 3, 16, 24)


def test_one_patch(tiny, export):
    reference = tiny("pure", image_size=(8, 8))
    path, _ = export(reference)
    image = np.ones((1, 3, 8, 8), np.float32)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"image": image})
    with torch.no_grad():
        expected = reference.module(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_metadata_round_trip(tiny, export):
    reference = tiny("linear")
    path, _ = export(reference)
    _, metadata = load_model(path)
    assert metadata.variant == "linear"
    assert metadata.image == reference.image
    assert metadata.classes == reference.classes
    assert metadata.source == reference.source
    assert metadata.architecture["embed_dim"] == 24
    assert metadata.tool_version == infsa_deploy.__version__


def test_large_weights_go_to_external_data(tiny, export, tmp_path):
    path, model = export(tiny("linear"))
    _, metadata = load_model(path)
    image = np.ones((1, 3, 16, 24), np.float32)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"image": image})
    large = tmp_path / "large.onnx"
    save_model(model, metadata, large, external_data_from=10)
    assert (tmp_path / "large.onnx.data").stat().st_size > large.stat().st_size
    (found,) = onnxruntime.InferenceSession(large).run(None, {"image": image})
    np.testing.assert_array_equal(found, expected)
    save_model(model, metadata, large)
    assert not (tmp_path / "large.onnx.data").exists()


def test_infsa_deploy_export_takes_any_module(tmp_path):
    module, path = factory(), tmp_path / "foreign.onnx"
    example = torch.randn(1, 3, 32, 40)
    metadata = infsa_deploy.export(module, (example,), path, classes=list("abcdefg")).metadata
    assert metadata.classes == tuple("abcdefg")
    with torch.no_grad():
        expected = module(example).numpy()
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {"pixels": example.numpy()})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert session.run(None, {"pixels": np.zeros((5, 3, 32, 40), np.float32)})[0].shape == (5, 7)


def test_the_module_given_is_left_in_training(tmp_path):
    module = factory().train()
    infsa_deploy.export(module, (torch.zeros(1, 3, 32, 40),), tmp_path / "m.onnx")
    assert all(child.training for child in module.modules())


@pytest.mark.parametrize(
    ("change", "options", "kind", "message"),
    [
        (lambda module: module, {"example_inputs": torch.zeros(1, 3, 32, 40)}, UsageError, r"image is \[3, 32, 40\]"),
        (lambda module: module, {"example_inputs": ()}, UsageError, "image is missing"),
        (lambda module: module, {"classes": "ab"}, UsageError, "2 classes are named"),
        (lambda module: module.half(), {}, ModelError, r"is in torch\.float16"),
        (lambda module: module, {"example_inputs": (torch.zeros(1, 4, 32, 40),)}, ModelError, "fails on an image"),
    ],
)
def test_what_a_module_cannot_be_exported_with(change, options, kind, message, tmp_path):
    given = {"example_inputs": (torch.zeros(1, 3, 32, 40),), "path": tmp_path / "m.onnx", **options}
    with pytest.raises(kind, match=message):
        infsa_deploy.export(change(factory()), **given)
    assert not list(tmp_path.iterdir())


def test_a_module_without_infsa_is_said_to_be_one(tmp_path):
    image = (torch.zeros(1, 3, 224, 224),)
    report = infsa_deploy.export(no_attention(), image, tmp_path / "m.onnx")
    assert (report.metadata.variant, report.metadata.form) == ("none", "reference")
    assert "no module with InfSA attention" in report.notices[0]
    with pytest.raises(ModelError, match="custom ops"):
        infsa_deploy.export(no_attention(), image, tmp_path / "n.onnx", config=ExportConfig(require_ops=True))
    assert not (tmp_path / "n.onnx").exists()


class Branching(torch.nn.Module):
    """Control flow on values, which torch.export refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = factory()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits = self.inner(pixels)
        return logits if logits.sum() > 0 else -logits


def test_an_untraceable_module_names_the_cause(tmp_path):
    with pytest.raises(ModelError, match="Branching could not be traced") as caught:
        infsa_deploy.export(Branching(), (torch.zeros(1, 3, 32, 40),), tmp_path / "m.onnx")
    assert caught.value.why
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_writing_fails(tiny, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("infsa_deploy.graph.store.onnx.checker.check_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_reference(tiny("linear"), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_missing_folder_and_folder_as_file(tiny, tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        export_reference(tiny("linear"), tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        export_reference(tiny("linear"), tmp_path)


def test_full_disk(tiny, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("infsa_deploy.graph.store.ir.save", full)
    with pytest.raises(HostError, match="cannot write") as caught:
        export_reference(tiny("linear"), tmp_path / "m.onnx")
    assert "disk is full" in caught.value.why
    assert list(tmp_path.iterdir()) == []
