"""Engines built by NVIDIA's builder, without a GPU: plugins, types, shapes and the sidecar are what was asked.

The models are tiny, but for those of 4 layers and 1024 channels (marked slow). What the options combine to is in
test_matrix.py; scripts/engine_builds.py does the same at full width and up to 9216 x 9216.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import onnx
import pytest

from infsa_deploy.config import EngineConfig, ExportConfig, ModelSource
from infsa_deploy.engine.build import Listener, forecast_engine
from infsa_deploy.engine.from_export import build as build_retyped
from infsa_deploy.engine.sidecar import read_sidecar
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from infsa_deploy.files import sha256
from tests.engine.conftest import A100, PLUGINS

PORTABLE = ("sm80", "sm89", "sm120")


def test_plugins_beside_the_plan(exported, build, double, tmp_path):
    record = build(exported("linear"), plugin_library=double, embed_plugins=False)
    assert not record.plugins.embedded
    assert double.read_bytes() not in (tmp_path / "m.engine").read_bytes()
    assert record.plugins.sha256 == sha256(double)


@pytest.mark.parametrize("hops", [1, 3])
def test_function_bodies_where_plugins_are_off(exported, build, tmp_path, hops):
    notes = []
    record = build(exported("pure", hops=hops), plugins=False, listener=Listener(note=notes.append))
    assert (record.plugins.mode, record.plugins.layers, record.plugins.library) == ("bodies", {}, None)
    assert any("function bodies" in note for note in notes)
    assert b"infsa" not in (tmp_path / "m.engine").read_bytes()


def test_a_model_without_custom_ops_needs_no_library(tiny, tmp_path, build):
    export_reference(tiny("linear"), tmp_path / "reference.onnx", ExportConfig(fold=False))
    assert build(tmp_path / "reference.onnx").plugins.mode == "none"


def test_the_sidecar_says_what_the_engine_is(exported, build, double, tmp_path):
    model = exported("linear")
    record = build(model, plugin_library=double, optimization_level=2, workspace_bytes=1 << 30)
    engine = tmp_path / "m.engine"
    assert read_sidecar(engine) == record
    assert record.engine_sha256 == hashlib.sha256(engine.read_bytes()).hexdigest()
    assert record.engine_bytes == engine.stat().st_size
    assert (record.onnx, record.onnx_sha256) == ("linear.onnx", sha256(model))
    assert record.options == {"workspace_bytes": 1 << 30, "optimization_level": 2}
    assert record.metadata.classes == tuple("abcde")
    assert record.metadata.dtype == "fp32"
    image = record.inputs["image"]
    assert (image.minimum, image.optimum, image.maximum) == ((1, 3, 16, 24), (8, 3, 16, 24), (32, 3, 16, 24))
    assert record.outputs["logits"].shape == (-1, 5)
    assert record.activation_bytes > 0
    assert record.build_s > 0
    assert "Total Activation Memory" in (tmp_path / "m.engine.log").read_text()


@pytest.mark.long  # benchmarks/engine_builds.md
@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_the_paper_s_width_at_224(double, tmp_path, variant):
    model = tmp_path / "m.onnx"
    export_reference(load_reference(ModelSource(model=f"infvit_{variant}_4l")), model)
    config = EngineConfig(precision="fp16", plugin_library=double, targets=PORTABLE)
    record = build_retyped(model, tmp_path / "m.engine", config, Listener())
    assert record.plugins.layers == dict.fromkeys(PLUGINS[variant], 4)
    assert set(record.precision.products) == {"fp16"}
    assert record.engine_bytes < 1.2 * model.stat().st_size / 2  # the weights are stored in the type asked for


def test_a_forecast_builds_nothing(exported, double, tmp_path):
    model, notes = exported("pure"), []
    config = EngineConfig(plugin_library=double, max_shapes={"image": (4, 3, 16, 24)})
    forecast = forecast_engine(model, tmp_path / "x.log", config, Listener(note=notes.append))
    assert forecast.plugins.layers == PLUGINS["pure"]
    assert forecast.precision.products == {"fp32": 10}  # 4 a block, patches, classifier
    assert forecast.inputs["image"].maximum == (4, 3, 16, 24)
    assert any("predicted memory at image 4x3x16x24" in note for note in notes)
    assert not list(tmp_path.glob("*.engine*"))


def test_a_lowered_batch_is_told_and_recorded(exported, double, tmp_path):
    notes = []
    config = EngineConfig(plugin_library=double)
    model = exported("linear", image_size=(2048, 2048), patch_size=128)
    forecast = forecast_engine(model, tmp_path / "x.log", config, Listener(note=notes.append))
    assert forecast.inputs["image"].maximum[0] == 16
    assert "the largest batch is 16, not 32" in forecast.inputs["image"].lowered
    assert forecast.inputs["image"].lowered in notes


def test_external_weights(exported, build, double):
    model = exported("pure")
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="w.data", size_threshold=0)
    assert build(model, plugin_library=double).plugins.layers == PLUGINS["pure"]
    assert build(model, plugins=False).precision.products == {"fp32": 10}


def test_predicted_memory_grows_with_the_batch(exported, double, tmp_path):
    model = exported("linear")
    sizes = [
        forecast_engine(
            model,
            tmp_path / "x.log",
            EngineConfig(plugin_library=double, max_shapes={"image": (batch, 3, 16, 24)}),
        ).activation_bytes_predicted
        for batch in (8, 16)
    ]
    assert sizes[0] < sizes[1] <= 2 * sizes[0]


def test_an_engine_too_large_for_the_gpu_is_warned_of(exported, tmp_path, double, monkeypatch):
    monkeypatch.setattr("infsa_deploy.engine.build.find_gpu", lambda: replace(A100, memory_bytes=4096))
    notes = []
    config = EngineConfig(backend="tensorrt-rtx", plugin_library=double)
    forecast_engine(exported("linear"), tmp_path / "x.log", config, Listener(note=notes.append))
    assert any("warning" in note and "--max-shapes" in note for note in notes)
