"""Models of any inputs and outputs: by arrays in Python, and eagerly in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import infsa_deploy
from infsa_deploy.errors import UsageError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.outputs import summarise, write_npz
from infsa_deploy.runtime.sessions.eager import EagerSession
from infsa_deploy.runtime.sessions.protocol import TensorInfo
from tests.runtime.any_interface import FIXED_BATCH, MAPS, TWO_INPUTS, feeds, write


@pytest.fixture
def two(tmp_path):
    return write(TWO_INPUTS, tmp_path / "two.onnx")


def test_arrays_go_in_and_arrays_come_out(two):
    given = feeds()
    with infsa_deploy.load(two, threads=1) as model:
        found = model(given)
        with pytest.raises(UsageError, match="does not classify") as caught:
            model.predict([np.zeros((8, 8, 3))])
        assert "boxes float32 [batch, 3]" in caught.value.why
        with pytest.raises(UsageError, match="images alone cannot feed"):
            model.run(given["image"])
        with pytest.raises(UsageError, match="'image' and 'mask' do not go together"):
            model({**given, "mask": given["mask"][:1]})
        assert model.preprocess(np.zeros((8, 8, 3), np.float32)).shape == (1, 3, 8, 8)
    np.testing.assert_allclose(found["boxes"], given["image"].mean((2, 3)) * given["mask"], rtol=1e-5, atol=1e-6)
    assert found["count"] == given["mask"].sum()


def test_one_tensor_named_logits_need_not_be_logits(tmp_path):
    model = infsa_deploy.load(write(MAPS, tmp_path / "maps.onnx", classes=("a", "b", "c")), threads=1)
    image = feeds(3)["image"]
    assert model.run(image)["logits"].shape == (3, 3, 8, 8)
    assert not model.classifies
    with pytest.raises(UsageError, match="does not classify"):
        model.predict([np.zeros((8, 8, 3))])


def test_a_model_without_an_image(tmp_path):
    model = infsa_deploy.load(write(MAPS, tmp_path / "maps.onnx", size=16), threads=1)
    with pytest.raises(UsageError, match="takes no picture"):
        model.preprocess(np.zeros((8, 8, 3), np.float32))


def test_an_output_without_rows_is_not_joined(tmp_path):
    model = infsa_deploy.load(write(FIXED_BATCH, tmp_path / "fixed.onnx"), threads=1)
    assert model.run(feeds(2)["image"])["largest"].shape == ()
    with pytest.raises(UsageError, match="output 'largest' cannot be joined"):
        model.run(feeds(3)["image"])


def test_an_input_without_axes():
    session = EagerSession(Nested(), [TensorInfo("x", ("batch", 3, 8, 8), "float32"), TensorInfo("y", (), "int64")])
    assert session({"image": feeds()["image"], "ids": np.array(3)})["rest.output_0"].shape == ()


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, image, ids):
        return {"scores": self.layer(image.mean((2, 3))), "rest": (ids + 1, None)}


@pytest.mark.parametrize(("dtype", "wide"), [("fp32", np.float32), ("bf16", np.float32), ("fp64", np.float64)])
def test_eager_takes_any_interface(dtype, wide):
    infos = [TensorInfo("x", ("batch", 3, 8, 8), "float16"), TensorInfo("y", ("batch",), "int64")]
    module = Nested()
    session = EagerSession(module, infos, dtype)
    assert [(info.name, info.dtype) for info in session.inputs] == [("image", "float32"), ("ids", "int64")]
    given = {"image": feeds()["image"], "ids": np.array([1, 2**40])}
    found = session(given)
    assert found["scores"].dtype == wide
    expected = module(torch.from_numpy(given["image"]), torch.from_numpy(given["ids"]))["scores"].detach().numpy()
    np.testing.assert_allclose(found["scores"], expected, rtol=0.1 if dtype == "bf16" else 1e-5, atol=0.02)
    assert found["rest.output_0"].tolist() == [2, 2**40 + 1]
    assert [info.name for info in session.outputs] == ["scores", "rest.output_0"]


def test_eager_of_an_image_alone():
    session = EagerSession(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), ImageSpec(3, 8, 8, (0.5,) * 3, (0.5,) * 3))
    assert session.inputs == (TensorInfo("input", ("batch", 3, 8, 8), "float32"),)
    assert session.outputs == (TensorInfo("logits", ("batch", "classes"), "float32"),)
    assert session({"input": feeds()["image"]})["logits"].shape == (2, 2)


def test_summaries_are_of_finite_numbers():
    arrays = {"a": np.array([1.0, np.nan, 3.0]), "b": np.array(True), "c": np.zeros((0, 2)), "d": np.array([np.inf])}
    found = {line.name: (line.minimum, line.maximum, line.mean, line.not_finite) for line in summarise(arrays)}
    nothing = (None, None, None)
    assert found == {"a": (1, 3, 2, 1), "b": (1, 1, 1, 0), "c": (*nothing, 0), "d": (*nothing, 1)}


def test_archives_take_any_name_and_type(tmp_path):
    import ml_dtypes

    arrays = {"file": np.arange(3), "a.b": np.array(2.5), "low": np.array([0.5], ml_dtypes.bfloat16)}
    write_npz(arrays, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as archive:
        assert {name: archive[name].tolist() for name in archive} == {"file": [0, 1, 2], "a.b": 2.5, "low": [0.5]}
