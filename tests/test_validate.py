"""Validation passes what is right and fails what is not, by how much it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from infsa_models.checkpoint import save_vit

from infsa_deploy import validate
from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from infsa_deploy.export.store import load_model, save_model
from infsa_deploy.runtime.eager import EagerSession
from infsa_deploy.runtime.ort import OrtSession
from infsa_deploy.validate import ReferenceOutputs, validate_model
from infsa_deploy.validation_inputs import Plan

PLAN = Plan(real=5, random=3, again=16)


@pytest.fixture
def exported(tiny, tmp_path):
    """Export a tiny checkpoint and return the paths of model and checkpoint."""

    def run(variant: str):
        weights, path = tmp_path / f"{variant}.safetensors", tmp_path / f"{variant}.onnx"
        save_vit(tiny(variant).module, weights)
        export_reference(load_reference(ModelSource(weights=str(weights))), path)
        return path, weights

    return run


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_a_right_model_passes(variant, exported):
    path, _ = exported(variant)
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
        assert 0 < comparison.yardstick_max_abs < 1e-5
        assert comparison.bound >= 2 * comparison.yardstick_max_abs
    assert len(phases) == 3


@pytest.mark.parametrize("batch", [1, 4])
def test_a_model_of_a_fixed_batch(batch, tiny, tmp_path):
    weights, path = tmp_path / "m.safetensors", tmp_path / "m.onnx"
    save_vit(tiny("linear").module, weights)
    export_reference(load_reference(ModelSource(weights=str(weights))), path, ExportConfig(static_batch=batch))
    report = validate_model(path, PLAN, threads=1)
    assert report.passed
    assert [c.images for c in report.comparisons] == [5, 3]


def damage(path, change: float) -> None:
    """Scale the head's weights by 1 + change."""
    model, metadata = load_model(path)
    weight = model.graph.initializers["head.weight"]
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1 + change), name="head.weight")
    save_model(model, metadata, path)


@pytest.mark.parametrize("change", [1e-4, float("nan")])
def test_a_wrong_model_fails(change, exported):
    path, _ = exported("linear")
    damage(path, change)
    report = validate_model(path, PLAN, threads=1)
    assert not report.passed
    assert not any(c.passed for c in report.comparisons)


class LuckyOnFew:
    """Eager, but in float64 on batches of fewer than eight: a yardstick that errs by nothing."""

    def __init__(self, model, image, dtype) -> None:
        self._sessions = EagerSession(model, image, "fp64"), EagerSession(model, image, dtype)
        self.inputs = self._sessions[1].inputs

    def __call__(self, feeds):
        (images,) = feeds.values()
        session = self._sessions[len(images) >= 8]
        return session({session.inputs[0].name: images.astype(session.inputs[0].dtype)})


@pytest.mark.parametrize(("change", "passed"), [(0.0, True), (1e-4, False)])
def test_what_fails_by_a_yardstick_lucky_on_few_images_is_compared_on_more(change, passed, exported, monkeypatch):
    path, _ = exported("linear")
    damage(path, change)
    monkeypatch.setattr(validate, "yardstick_session", LuckyOnFew)
    report = validate_model(path, PLAN, threads=1)
    assert [c.images for c in report.comparisons] == [16, 16]
    assert report.passed is passed
    assert not validate_model(path, replace(PLAN, again=0), threads=1).passed


def test_files_of_one_model_share_what_the_reference_gives(exported, tmp_path, monkeypatch):
    path, weights = exported("linear")
    plain = tmp_path / "plain.onnx"
    export_reference(load_reference(ModelSource(weights=str(weights))), plain, ExportConfig(fold=False))
    alone, known = validate_model(plain, PLAN, threads=1), ReferenceOutputs()
    validate_model(path, Plan(PLAN.real - 1, PLAN.random, batch=1), threads=1, known=known)
    single = replace(PLAN, batch=1)
    expected = validate_model(plain, single, threads=1, known=known)
    assert expected.comparisons[0].max_abs == pytest.approx(alone.comparisons[0].max_abs, rel=0.5)
    monkeypatch.setattr(validate, "EagerSession", lambda *_: pytest.fail("the reference ran again"))
    assert validate_model(plain, single, threads=1, known=known) == expected


def test_what_another_reference_gave_is_not_taken(exported):
    known = ReferenceOutputs()
    for variant in ("linear", "pure", "linear"):
        path, _ = exported(variant)
        assert validate_model(path, PLAN, threads=1, known=known) == validate_model(path, PLAN, threads=1)


def test_what_was_opened_is_closed(exported, monkeypatch):
    closed, close = [], OrtSession.close
    monkeypatch.setattr(OrtSession, "close", lambda session: closed.append(session) or close(session))
    validate_model(exported("linear")[0], Plan(1, 0), threads=1)
    assert len(closed) == 1


def test_the_reference_must_be_the_same_model(exported, tiny):
    path, weights = exported("linear")
    save_vit(tiny("linear", num_classes=5).module, weights)
    assert validate_model(path, PLAN, threads=1).passed
    other = tiny("linear")
    other.module.head.bias.data += 1
    save_vit(other.module, weights)
    with pytest.raises(ModelError, match="not the one"):
        validate_model(path, PLAN)


def test_a_checkpoint_that_moved(exported, tmp_path):
    path, weights = exported("pure")
    moved = weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(ModelError, match=weights.name):
        validate_model(path, PLAN)
    assert validate_model(path, PLAN, weights=moved, threads=1).passed


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


def test_a_plan_that_is_empty_for_int8(exported):
    path, _ = exported("linear")
    model, metadata = load_model(path)
    save_model(model, replace(metadata, dtype="int8", quantization_error=0.1), path)
    with pytest.raises(UsageError, match="nothing to compare"):
        validate_model(path, Plan(0, 3), threads=1)


@pytest.mark.parametrize(("found", "cosine"), [(0.0, 0.0), (float("nan"), 0.0), (-2.0, -1.0), (2.0, 1.0)])
def test_the_cosine_of_an_output_that_is_silently_zero(found, cosine, exported):
    _, metadata = load_model(exported("linear")[0])
    exact = np.array([[1.0, 2.0], [0.0, 0.0]])
    compared = validate._comparison("logits", "real", exact, exact, found * exact, metadata=metadata)
    assert compared.cosine == pytest.approx(cosine)
