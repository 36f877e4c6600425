"""Exported models, bodies of custom ops included, on OpenVINO."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from infsa_deploy import load
from infsa_deploy.errors import ModelError
from infsa_deploy.runtime.sessions.eager import EagerSession
from infsa_deploy.runtime.sessions.ort import OrtSession

pytestmark = pytest.mark.own_process
FLOAT32 = 1e-5  # of the largest logit: what exports in fp32 are held to


@pytest.fixture
def open_session():
    """OpenVinoSession, imported where the test runs: every process of pytest collects this file."""
    from infsa_deploy.runtime.sessions.openvino import OpenVinoSession

    return OpenVinoSession


@pytest.mark.parametrize(("variant", "hops"), [("linear", 1), ("pure", 1), ("pure", 3), ("softmax", 1)])
@pytest.mark.parametrize("dynamic_size", [False, True], ids=["one size", "free size"])
def test_agrees_with_eager(variant, hops, dynamic_size, tiny, export, rng, open_session):
    reference = tiny(variant, hops=hops)
    path, _ = export(reference, dynamic_size=dynamic_size)
    batch = rng.standard_normal((3, 3, 16, 24), dtype=np.float32)
    exact = EagerSession(reference.module, reference.image, "fp64")({"image": batch})["logits"]
    found = open_session(path, threads=1)({"image": batch})["logits"]
    np.testing.assert_allclose(found, exact, rtol=0, atol=FLOAT32 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_narrow_inputs_and_outputs(dtype, tiny, export, rng, open_session):
    reference = tiny("linear")
    path, _ = export(reference, dtype=dtype, keep_io=False)
    session = open_session(path, threads=1)
    image = session.inputs[0]
    batch = rng.standard_normal((3, 3, 16, 24), dtype=np.float32).astype(image.dtype)
    found = session({image.name: batch})["logits"]
    assert found.dtype == batch.dtype == np.dtype({"fp16": "float16", "bf16": "bfloat16"}[dtype])
    exact, narrow = (
        EagerSession(reference.module, reference.image, kind)({"image": batch.astype(np.float32)})["logits"]
        for kind in ("fp64", dtype)
    )
    epsilon = {"fp16": 2.0**-10, "bf16": 2.0**-7}[dtype]
    bound = 2 * np.abs(narrow - exact).max() + epsilon * np.abs(exact).max()
    assert np.abs(found.astype(np.float64) - exact).max() <= bound


def test_threads_of_one_model_do_not_mix(tiny, export, rng):
    path, _ = export(tiny("linear"))
    images = rng.standard_normal((40, 1, 3, 16, 24), dtype=np.float32)
    with load(path, provider="openvino", threads=1, contexts=2) as model, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda image: model({"image": image})["logits"], images))
    expected = OrtSession(path, threads=1)({"image": images[:, 0]})["logits"]
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=0, atol=2 * FLOAT32 * np.abs(expected).max())


def test_pure_says_that_it_holds_the_affinity(tiny, export, open_session):
    path, _ = export(tiny("pure"))
    tiled, whole = OrtSession(path).metadata, open_session(path).metadata
    tokens, heads = 10_001, tiled.architecture["num_heads"]
    assert whole.memory.total_bytes(tokens) - tiled.memory.total_bytes(tokens) == 4 * heads * tokens**2


def test_truncated_file(tiny, export, tmp_path, open_session):
    path, _ = export(tiny("linear"))
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"cut\.onnx cannot be loaded by OpenVINO") as caught:
        open_session(tmp_path / "cut.onnx")
    assert "truncated" in caught.value.why


def test_missing_file(tmp_path, open_session):
    with pytest.raises(ModelError, match=r"none\.onnx"):
        open_session(tmp_path / "none.onnx")
