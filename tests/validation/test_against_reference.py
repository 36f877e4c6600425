"""Validation passes what is right and fails what is not, by how much it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from infsa_models.checkpoint import save_vit

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from infsa_deploy.graph.store import load_model, save_model
from infsa_deploy.runtime.sessions.ort import OrtSession
from infsa_deploy.validation.against_reference import smallest_cosine, validate_model
from infsa_deploy.validation.inputs import Plan
from infsa_deploy.validation.reference import ReferenceOutputs, _digest

PLAN = Plan(real=5, random=3)


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_a_right_model_passes(variant, exported_once):
    path, _ = exported_once(variant)
    phases: list[str] = []
    report = validate_model(path, PLAN, threads=1, progress=phases.append)
    assert report.passed
    assert [(c.output, c.inputs, c.images) for c in report.comparisons] == [
        ("logits", "real 16x24", 5),
        ("logits", "random 16x24", 3),
    ]
    for comparison in report.comparisons:
        assert comparison.top1_agreement == 1.0
        assert comparison.cosine == pytest.approx(1.0, abs=1e-9)
        assert 0 < comparison.yardstick_rms < comparison.plausible_rms < 1e-5
        assert comparison.rms_bound >= 2 * comparison.yardstick_rms
        assert comparison.bound > comparison.rms_bound
    assert len(phases) == (3 if variant == "softmax" else 4)  # whose attention is exported as it is


@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_of_a_fixed_batch(batch, exported_once):
    report = validate_model(exported_once("linear", static_batch=batch)[0], PLAN, threads=1)
    assert report.passed
    assert [c.images for c in report.comparisons] == [5, 3]


def damage(path, change: float) -> None:
    """Scale the head's weights by 1 + change."""
    model, metadata = load_model(path)
    weight = model.graph.initializers["head.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1 + change), name="head.weight")
    save_model(model, metadata, path)


@pytest.mark.parametrize("change", [1e-4, float("nan")])
def test_a_wrong_model_fails(change, copied):
    path = copied("linear")
    damage(path, change)
    report = validate_model(path, PLAN, threads=1)
    assert not report.passed
    assert not any(c.passed for c in report.comparisons)


def test_files_of_one_model_share_what_the_reference_gives(exported_once, monkeypatch):
    path, plain = exported_once("linear")[0], exported_once("linear", fold=False)[0]
    alone, known = validate_model(plain, PLAN, threads=1), ReferenceOutputs()
    validate_model(path, Plan(PLAN.real - 1, PLAN.random, batch=1), threads=1, known=known)
    single = replace(PLAN, batch=1)
    expected = validate_model(plain, single, threads=1, known=known)
    assert expected.comparisons[0].max_abs == pytest.approx(alone.comparisons[0].max_abs, rel=0.5)
    monkeypatch.setattr(ReferenceOutputs, "kept", _only_what_is_known)
    assert validate_model(plain, single, threads=1, known=known) == expected


def _only_what_is_known(known, module, dtype):
    return lambda feeds: known._outputs[dtype, _digest(feeds)]


def test_what_another_reference_gave_is_not_taken(exported_once):
    known = ReferenceOutputs()
    for variant in ("linear", "pure", "linear"):
        path, _ = exported_once(variant)
        assert validate_model(path, PLAN, threads=1, known=known) == validate_model(path, PLAN, threads=1)


def test_what_was_opened_is_closed(exported_once, monkeypatch):
    closed, close = [], OrtSession.close
    monkeypatch.setattr(OrtSession, "close", lambda session: closed.append(session) or close(session))
    validate_model(exported_once("linear")[0], Plan(1, 0), threads=1)
    assert len(closed) == 1


def test_the_reference_must_be_the_same_model(exported_once, tiny, tmp_path):
    path, _ = exported_once("linear")
    same, another = tmp_path / "same.safetensors", tmp_path / "another.safetensors"
    save_vit(tiny("linear").module, same)
    other = tiny("linear")
    other.module.head.bias.data += 1
    save_vit(other.module, another)
    assert validate_model(path, Plan(1, 0), weights=same, threads=1).passed
    with pytest.raises(ModelError, match="not the one"):
        validate_model(path, PLAN, weights=another)


def test_a_checkpoint_that_moved(copied, tmp_path):
    model, metadata = load_model(copied("pure"))
    gone = replace(metadata, source=replace(metadata.source, weights=str(tmp_path / "gone.safetensors")))
    save_model(model, gone, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"gone\.safetensors"):
        validate_model(tmp_path / "m.onnx", PLAN)


def test_a_module_from_memory_must_be_named(tmp_path):
    import torch

    import infsa_deploy
    from tests.export.authors_attention import factory

    path = tmp_path / "m.onnx"
    infsa_deploy.export(factory(), (torch.zeros(1, 3, 32, 40),), path)
    with pytest.raises(ModelError, match="where its reference comes from"):
        validate_model(path, PLAN)
    assert validate_model(path, PLAN, module="tests.export.authors_attention:factory", threads=1).passed


def test_hops_of_a_module_whose_own_attention_has_none(tmp_path):
    source = ModelSource(module="tests.export.authors_attention:factory", image_size=(32, 40), hops=3)
    export_reference(load_reference(source), tmp_path / "m.onnx")
    assert validate_model(tmp_path / "m.onnx", PLAN, threads=1).passed


def test_an_empty_plan():
    with pytest.raises(UsageError, match="nothing to compare"):
        Plan(0, 0)


def test_a_plan_that_is_empty_for_int8(copied):
    path = copied("linear")
    model, metadata = load_model(path)
    save_model(model, replace(metadata, dtype="int8", quantization_error=0.1), path)
    with pytest.raises(UsageError, match="nothing to compare"):
        validate_model(path, Plan(0, 3), threads=1)


@pytest.mark.parametrize(("found", "cosine"), [(0.0, 0.0), (float("nan"), 0.0), (-2.0, -1.0), (2.0, 1.0)])
def test_the_cosine_of_an_output_that_is_silently_zero(found, cosine):
    exact = np.array([[1.0, 2.0], [0.0, 0.0]])
    assert smallest_cosine(exact, found * exact) == pytest.approx(cosine)
