"""Truth and yardstick are the user's own module: what an export changes in it cannot hide, in no type."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.errors import ToleranceError
from infsa_deploy.export.interface import flatten_outputs
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.rewrite.deployable import to_deployable
from infsa_deploy.export.sources import load_reference
from infsa_deploy.graph.store import load_model
from infsa_deploy.runtime.sessions.protocol import TensorInfo, check_feeds
from infsa_deploy.validation import against_reference
from infsa_deploy.validation.against_reference import check_tolerance, validate_model
from infsa_deploy.validation.inputs import Plan, call_in_batches, inputs_by_kind
from infsa_deploy.validation.reference import DisturbedRun, ReferenceRun, rounded_tensors
from infsa_deploy.validation.rewrite import rewrite_difference
from infsa_deploy.validation.tolerance import judge_model
from tests.validation import users_modules

PLAN = Plan(real=6, random=4)
GATED = "tests.validation.users_modules:gated"
IMAGE = {"image": np.random.default_rng(0).standard_normal((4, 3, 32, 40)).astype(np.float32)}


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_an_export_without_the_users_gate_fails_in_every_type(dtype, tmp_path):
    source = ModelSource(module="tests.validation.users_modules:plain", image_size=(32, 40))
    path = tmp_path / "m.onnx"
    export_reference(load_reference(source), path, ExportConfig(dtype=dtype))
    assert validate_model(path, PLAN, threads=1).passed
    report = validate_model(path, PLAN, module=GATED, threads=1)
    assert not any(comparison.passed for comparison in report.comparisons)
    assert all(comparison.plausible for comparison in report.comparisons)
    with pytest.raises(ToleranceError):
        check_tolerance([report])


def test_the_module_that_a_rewrite_changes_is_named():
    module, form = users_modules.gated(), users_modules.plain()
    feeds = {"pixels": IMAGE["image"]}
    truth = ReferenceRun(module, "fp64")(feeds)
    assert rewrite_difference(module, module, feeds, truth) == ""
    said = rewrite_difference(module, form, feeds, truth)
    assert said.startswith("second differs from the user's module by 0.")


def test_a_rewrite_that_differs_fails_the_model(exported_once, monkeypatch):
    monkeypatch.setattr(against_reference, "rewrite_difference", lambda *_: "blocks.0 differs by 0.7 in float64")
    report = validate_model(exported_once("linear")[0], Plan(2, 0), threads=1)
    assert all(comparison.passed for comparison in report.comparisons)
    assert not report.passed
    with pytest.raises(ToleranceError, match=r"not its module: blocks\.0 differs by 0\.7"):
        check_tolerance([report])


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_folding_in_float64_differs_by_nothing(variant, tiny):
    wide = ReferenceRun(tiny(variant).module, "fp64")
    feeds = {"image": IMAGE["image"][:, :, :16, :24]}
    assert rewrite_difference(tiny(variant).module, to_deployable(wide.module), feeds, wide(feeds)) == ""


def test_the_yardstick_rounds_weights_inputs_and_what_modules_give():
    module = users_modules.plain()
    run = ReferenceRun(module, "fp16")
    outputs = run.inner({"pixels": IMAGE["image"]}, {"patches", "first", "second", "head"})
    assert list(outputs) == ["patches", "first", "second", "head"]
    for array in (*outputs.values(), *(weight.detach().double().numpy() for weight in run.module.parameters())):
        assert (array == array.astype(np.float16)).all()
    same = ReferenceRun(module, "fp16")({"pixels": IMAGE["image"].astype(np.float16).astype(np.float32)})
    assert (same["logits"] == run({"pixels": IMAGE["image"]})["logits"]).all()
    assert any((weight != weight.half()).any() for weight in module.parameters())  # the user's own are left alone


def test_a_disturbance_is_of_the_types_size_and_the_same_again():
    exact = ReferenceRun(users_modules.plain(), "fp64")({"pixels": IMAGE["image"]})["logits"]
    one, same, other = (
        DisturbedRun(users_modules.plain(), "fp16", seed)({"pixels": IMAGE["image"]})["logits"] for seed in (0, 0, 1)
    )
    assert (one == same).all()
    assert (one != other).any()
    assert 2.0**-14 < np.abs(one - exact).max() / np.abs(exact).max() < 2.0**-6


def test_half_arithmetic_of_small_scores_is_no_yardstick(tiny):
    """q and k scaled by 1e-3: their product vanishes in float16, and the deployable form errs by all of its output."""
    module = tiny("linear").module
    for block in module.blocks:
        for name in ("q_proj", "k_proj"):
            projection = getattr(block.attention, name)
            projection.weight.data *= 1e-3
            projection.bias.data *= 1e-3
        block.attention.v_proj.weight.data *= 40  # so that it is seen
    feeds = {"image": IMAGE["image"][:, :, :16, :24]}
    exact, narrow = (ReferenceRun(module, dtype)(feeds)["logits"] for dtype in ("fp64", "fp16"))
    half = to_deployable(module).half()
    with torch.no_grad():
        found = half(torch.from_numpy(feeds["image"]).half()).double().numpy()
    none = lambda images, errors: np.zeros(len(images), bool)  # noqa: E731
    judged = judge_model(found, narrow, exact, "fp16", rounded_tensors(module), none)
    assert judged.yardstick_rms < judged.plausible_rms
    assert judged.rms > judged.rms_bound
    blessed = judge_model(found, found, exact, "fp16", rounded_tensors(module), none)
    assert blessed.yardstick_rms > blessed.plausible_rms


class TwoInputSession:
    """The module in float32 behind the protocol of a runtime, with batches of three."""

    runtime, max_batch = "a double", 3
    inputs = (TensorInfo("image", ("batch", 3, 16, 24), "float32"), TensorInfo("mask", ("batch", 6), "bool"))
    outputs = tuple(
        TensorInfo(name, ("batch",), "float32") for name in ("boxes", "pair.output_0", "pair.output_1", "count")
    )

    def __init__(self, metadata, factor: float = 1.0) -> None:
        self.metadata, self.module, self.calls = metadata, users_modules.TwoInputs(), 0
        self.module.boxes.weight.data *= factor

    def __call__(self, feeds):
        check_feeds(self.inputs, feeds)
        self.calls += 1
        with torch.no_grad():
            outputs = self.module(*(torch.from_numpy(array) for array in feeds.values()))
        return {name: tensor.numpy() for name, tensor in flatten_outputs(outputs).items()}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, set()), (1.01, {"boxes"})])
def test_several_inputs_and_outputs_of_any_shape(factor, wrong, exported_once, tiny, monkeypatch, tmp_path):
    _, metadata = load_model(exported_once("linear")[0])
    session = TwoInputSession(metadata, factor)
    reference = replace(tiny("linear"), module=users_modules.TwoInputs())
    monkeypatch.setattr(against_reference, "open_artefact", lambda path, **_: session)
    monkeypatch.setattr(against_reference, "rebuild_reference", lambda *_: reference)
    monkeypatch.setattr(against_reference, "check_same_weights", lambda *_: None)
    report = validate_model(tmp_path / "m.onnx", Plan(8, 4))
    assert session.calls == 3 + 2
    assert {c.output for c in report.comparisons if not c.passed} == wrong
    assert [(c.output, c.images, c.top1_agreement is None) for c in report.comparisons[:4]] == [
        ("boxes", 8, True),
        ("pair.output_0", 8, False),
        ("pair.output_1", 8, True),
        ("count", 8, True),
    ]


def test_a_model_without_an_image_is_fed_noise(tiny):
    inputs = (TensorInfo("tokens", ("batch", 5, 8), "float32"), TensorInfo("ids", ("batch", 5), "int64"))
    (kind,) = inputs_by_kind(Plan(9, 0, batch=4), tiny("linear").image, inputs, "fp32").items()
    batches = list(kind[1])
    assert kind[0] == "random"
    assert [feeds["tokens"].shape[0] for feeds in batches] == [4, 4, 1]
    assert set(np.concatenate([feeds["ids"] for feeds in batches]).ravel()) == {0, 1}


def test_a_fixed_batch_is_filled_up(exported_once):
    class Fixed:
        inputs, max_batch = (TensorInfo("x", (4, 2), "float32"), TensorInfo("y", (4,), "int64")), None

        def __call__(self, feeds):
            check_feeds(self.inputs, feeds)
            return {"sum": feeds["x"].sum(1) + feeds["y"]}

    feeds = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.arange(6)}
    assert call_in_batches(Fixed(), feeds)["sum"].tolist() == [1, 6, 11, 16, 21, 26]
