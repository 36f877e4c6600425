"""The runtimes behind their one protocol."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.graph.store import save_model
from infsa_deploy.runtime.sessions.eager import EagerSession
from infsa_deploy.runtime.sessions.ort import OrtSession


@pytest.fixture
def linear(tiny, export):
    reference = tiny("linear")
    path, _ = export(reference)
    return reference, path


@pytest.fixture
def batch(rng) -> np.ndarray:
    return rng.standard_normal((3, 3, 16, 24), dtype=np.float32)


def test_both_runtimes_agree(linear, batch):
    reference, path = linear
    eager, ort = EagerSession(reference.module, reference.image), OrtSession(path, threads=1)
    assert [i.name for i in eager.inputs] == [i.name for i in ort.inputs] == ["image"]
    assert ort.outputs[0].name == eager.outputs[0].name == "logits"
    expected, found = eager({"image": batch})["logits"], ort({"image": batch})["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    for session in (eager, ort):
        session.close()
        with pytest.raises(AttributeError):
            session({"image": batch})


@pytest.mark.parametrize("dtype", ["fp64", "fp16", "bf16"])
def test_eager_in_other_types(linear, batch, dtype):
    reference, _ = linear
    exact = EagerSession(reference.module, reference.image, "fp64")({"image": batch})["logits"]
    found = EagerSession(reference.module, reference.image, dtype)({"image": batch})["logits"]
    assert found.dtype == (np.float64 if dtype == "fp64" else np.float32)
    assert np.abs(found - exact).max() <= {"fp64": 0, "fp16": 0.02, "bf16": 0.2}[dtype] * np.abs(exact).max()
    assert next(reference.module.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "inputs"),
        ({"picture": np.zeros((1, 3, 16, 24), np.float32)}, "picture"),
        ({"image": np.zeros((1, 3, 24, 16), np.float32)}, "24, 16"),
        ({"image": np.zeros((3, 16, 24), np.float32)}, "3, 16, 24"),
        ({"image": np.zeros((1, 3, 16, 24))}, "float64"),
    ],
)
def test_feeds_are_checked(linear, feeds, message):
    reference, path = linear
    for session in (EagerSession(reference.module, reference.image), OrtSession(path)):
        with pytest.raises(UsageError, match=message):
            session(feeds)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"", "is empty"), (b"\x08\x0a garbage", "cannot be loaded")]
)
def test_files_that_are_no_model(content, message, tmp_path):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        OrtSession(path)


@pytest.mark.parametrize("kept", [None, 100])
def test_weights_kept_apart_that_are_not_there(tiny, export, monkeypatch, kept):
    monkeypatch.setitem(save_model.__kwdefaults__, "external_data_from", 0)
    path, _ = export(tiny("linear"))
    data = path.with_name(f"{path.name}.data")
    content = data.read_bytes()
    data.unlink()
    if kept is not None:
        data.write_bytes(content[:kept])
    with pytest.raises(ModelError, match="cannot be loaded") as failed:
        OrtSession(path)
    assert "weights is missing or cut off" in failed.value.why
    assert f"copy {data.name}" in failed.value.fix


def test_an_absent_provider_is_refused(linear, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(HostError, match="CUDAExecutionProvider"):
        OrtSession(linear[1], provider="cuda")
    with pytest.raises(UsageError, match="'rocm'"):
        OrtSession(linear[1], provider="rocm")


def test_a_silent_fallback_is_refused(linear, monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "get_providers", lambda self: ["CPUExecutionProvider"], raising=True
    )
    with pytest.raises(HostError, match="did not start"):
        OrtSession(linear[1], provider="cuda")


def test_arrays_that_onnx_runtime_does_not_exchange(tiny, export, tmp_path):
    path, _ = export(tiny("linear"))
    model = onnx.load(path)
    logits = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("Cast", [logits.name], ["narrow"], to=onnx.TensorProto.BFLOAT16))
    logits.name, logits.type.tensor_type.elem_type = "narrow", onnx.TensorProto.BFLOAT16
    onnx.save(model, tmp_path / "narrow.onnx")
    with pytest.raises(HostError, match=r"cannot run .*narrow\.onnx from Python") as caught:
        OrtSession(tmp_path / "narrow.onnx")
    assert "tensor(bfloat16)" in caught.value.why
