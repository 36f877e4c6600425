"""The first layer at which an artefact parts from its reference, or from another artefact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from infsa_deploy.cli import main
from infsa_deploy.cli.output.tables import divergence_lines
from infsa_deploy.config import EngineConfig, Trust
from infsa_deploy.engine.build import build_engine
from infsa_deploy.engine.flavor import TENSORRT_RTX
from infsa_deploy.engine.sidecar import read_sidecar
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.graph.store import load_model, save_model
from infsa_deploy.records.codec import from_json, to_json
from infsa_deploy.records.validation import ValidationSet
from infsa_deploy.runtime.sessions.ort import OrtSession
from infsa_deploy.validation.against_reference import validate_model
from infsa_deploy.validation.divergence import between_files, find_divergence, from_reference
from infsa_deploy.validation.inner_tensors import images_at_once, inner_tensors, look_into
from infsa_deploy.validation.inputs import Plan

PLAN = Plan(real=2, random=2)


@pytest.fixture
def pair(copied):
    """A model and its copy whose `weight` is scaled: pair("blocks.0.norm1.weight", 2.0)."""

    def run(weight: str, factor: float):
        base, damaged = copied("linear", "base.onnx"), copied("linear", "damaged.onnx")
        model, metadata = load_model(base)
        value = model.graph.initializers[weight]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(factor), name=weight)
        save_model(model, metadata, damaged)
        return base, damaged

    return run


@pytest.mark.parametrize("factor", [2.0, float("nan")])
def test_the_damaged_layer_is_named(pair, factor):
    base, damaged = pair("blocks.0.norm1.weight", factor)
    found = between_files(base, validate_model(damaged, PLAN, threads=1), PLAN)
    assert found.first.op == "LayerNormalization"
    model, _ = load_model(damaged)
    assert found.first.node in [use.node.name for use in model.graph.initializers["blocks.0.norm1.weight"].uses()]
    assert found.layers > 20
    assert (found.first.relative is None) == np.isnan(factor)
    json.loads(to_json(found), parse_constant=pytest.fail)  # NaN is no JSON
    assert ("not finite" in " ".join(divergence_lines(found))) == np.isnan(factor)


def test_equal_models_do_not_part(pair):
    base, same = pair("blocks.0.norm1.weight", 1.0)
    found = between_files(base, validate_model(same, PLAN, threads=1), PLAN)
    assert found.first is None
    assert found.worst.relative == 0.0


@pytest.mark.parametrize(
    ("weight", "module"),
    [
        ("blocks.0.norm1.weight", "blocks.0.norm1"),
        ("blocks.1.mlp.expand.bias", "blocks.1.mlp"),
        ("blocks.1.attention.deployable_form.core.bv", "blocks.1.attention"),
        ("head.bias", "head"),
    ],
)
def test_the_damaged_module_of_the_reference_is_named(pair, weight, module):
    _, damaged = pair(weight, 2.0)
    found = from_reference(validate_model(damaged, PLAN, threads=1), PLAN)
    assert found.first.node == module
    assert found.first.relative > found.first.bound_relative


@pytest.mark.parametrize(
    ("variant", "changes"),
    [("linear", {"dtype": "fp16"}), ("linear", {"dynamic_size": True}), ("pure", {}), ("pure", {"fold": False})],
)
def test_each_stage_of_the_reference_is_found_in_an_export(exported_once, variant, changes):
    found = from_reference(validate_model(exported_once(variant, **changes)[0], PLAN, threads=1), PLAN)
    assert found.first is None
    assert found.layers == 5  # patches, two blocks, norm, head


@pytest.fixture
def engine(pair, tmp_path, monkeypatch):
    """An engine of the damaged model beside its ONNX file, and runs of engines by ONNX Runtime on what they are of."""
    if not TENSORRT_RTX.installed:
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx-cu13")
    _, damaged = pair("blocks.0.norm1.weight", 2.0)
    path = tmp_path / "m.engine"
    build_engine(damaged, path, EngineConfig(plugins=False, max_shapes={"image": (4, 3, 16, 24)}))
    monkeypatch.setattr("infsa_deploy.validation.inner_tensors.require_gpu", lambda purpose: None)
    monkeypatch.setattr("infsa_deploy.validation.inner_tensors.TrtSession", Replayed)
    return path


class Replayed(OrtSession):
    """What an engine computes, by the ONNX file beside it; the sidecar must promise what comes out."""

    def __init__(self, engine: Path, trust: Trust) -> None:
        record = read_sidecar(engine)
        super().__init__(engine.with_name(record.onnx), threads=1)
        assert {info.name for info in self.outputs} == set(record.outputs)
        assert record.inputs["image"].maximum == (4, 3, 16, 24)
        assert record.plugins.mode == "bodies"


def test_an_engine_is_built_again_with_every_tensor_an_output(engine, tmp_path):
    damaged = validate_model(tmp_path / "damaged.onnx", PLAN, threads=1)
    report = replace(damaged, model=str(engine))
    assert between_files(tmp_path / "base.onnx", report, PLAN).first.op == "LayerNormalization"
    assert from_reference(report, PLAN).first.node == "blocks.0.norm1"


def test_an_engine_without_its_model_cannot_be_looked_into(engine, tmp_path):
    report = replace(validate_model(tmp_path / "damaged.onnx", PLAN, threads=1), model=str(engine))
    (tmp_path / "damaged.onnx").write_bytes(b"another")
    with pytest.raises(ModelError, match="cannot be built again to look into it") as failed:
        from_reference(report, PLAN)
    assert "damaged.onnx with SHA-256" in failed.value.why


def test_images_at_once_are_what_each_batch_axis_allows(exported_once, engine):
    free, one, six = (
        look_into(exported_once("linear", **config)[0]) for config in ({}, {"static_batch": 1}, {"static_batch": 3})
    )
    large = replace(free, metadata=replace(free.metadata, image=replace(free.metadata.image, height=480, width=512)))
    assert [images_at_once([each]) for each in (free, one, six, large)] == [4, 1, 3, 1]
    assert images_at_once([free, one]) == 1
    assert images_at_once([look_into(engine)]) == 4
    with pytest.raises(UsageError, match="batches of 1 and 3"):
        images_at_once([one, six])


def test_models_of_a_fixed_batch(exported_once):
    report = validate_model(exported_once("linear", static_batch=3)[0], Plan(3, 0), threads=1)
    assert from_reference(report, PLAN).first is None


def test_looking_into_an_engine_needs_a_gpu(copied, tmp_path, monkeypatch):
    monkeypatch.setattr("infsa_deploy.engine.driver.find_gpu", lambda: None)
    inside = replace(look_into(copied("linear")), record=object())
    with pytest.raises(HostError, match="needs an NVIDIA GPU"):
        inner_tensors(inside, {"image": np.zeros((1, 3, 16, 24), np.float32)})


def test_more_than_two(pair):
    _, same = pair("head.bias", 1.0)
    with pytest.raises(UsageError, match="takes one or two models"):
        find_divergence([validate_model(same, PLAN, threads=1)] * 3, PLAN)


def test_as_typed(pair, capsys):
    base, damaged = map(str, pair("blocks.0.norm1.weight", 2.0))
    options = ["--images", "2", "--random", "0", "--threads", "1", "--find-divergence"]
    for typed, code, said in (
        ([base, damaged], 6, "first to leave the bound: LayerNormalization 'node_layer_norm'"),
        ([damaged], 6, "first to leave the bound: LayerNorm 'blocks.0.norm1'"),
        ([base], 0, "no layer leaves the bound"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["validate", *typed, *options])
        assert ended.value.code == code
        assert said in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["validate", base, damaged, *options, "--json"])
    assert from_json(ValidationSet, capsys.readouterr().out).divergence.first.op == "LayerNormalization"
