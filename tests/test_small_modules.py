"""Errors, configuration, records and whole-file writes."""

from __future__ import annotations

import errno
import json
import os

import pytest

from infsa_deploy import errors
from infsa_deploy.config import ModelSource, parse_hops, parse_image_size
from infsa_deploy.errors import DeployError, HostError, UsageError
from infsa_deploy.files import written_whole
from infsa_deploy.records.codec import from_json, to_json
from infsa_deploy.records.model import ImageSpec, MemoryNeed, ModelMetadata, Prediction


def test_exit_codes_are_distinct_and_documented():
    kinds = {kind.__name__: kind.exit_code for kind in DeployError.__subclasses__()}
    assert kinds == {"UsageError": 2, "HostError": 3, "ModelError": 4, "BuildError": 5, "ToleranceError": 6}
    assert all(str(code) in (errors.__doc__ or "") for code in kinds.values())


def test_an_error_says_what_why_and_fix():
    assert str(UsageError("this failed.", "of that", "do so")) == "this failed.\n  why: of that\n  fix: do so"
    assert str(UsageError("this failed.")) == "this failed."


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("480x640", (480, 640)), (" 32X16 ", (32, 16))])
def test_image_sizes(text, size):
    assert parse_image_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-8", "8x", "8x0", "8.5", "8x8x8", "big"])
def test_image_sizes_that_are_none(text):
    with pytest.raises(UsageError, match="image size"):
        parse_image_size(text)


def test_hops():
    assert [parse_hops(text) for text in ("1", "12", "inf")] == [1, 12, "inf"]
    for text in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(UsageError, match="hops"):
            parse_hops(text)


def test_records_survive_json():
    image = ImageSpec(3, 32, 48, (0.5, 0.4, 0.3), (1.0, 2.0, 3.0), 0.875)
    for hops in (3, "inf", None):
        source = ModelSource(model="digits_pure", image_size=(32, 48), hops=hops)
        architecture, need = {"depth": 4, "image_size": [32, 48]}, MemoryNeed(10, 2.5, patch=8)
        metadata = ModelMetadata(
            "pure", "ops", architecture, image, ("a", "b"), "0f", source, "fp32", need, "0.1", tile_tokens=64
        )
        assert from_json(ModelMetadata, to_json(metadata)) == metadata
    prediction = Prediction("x.png", ("a",), (0.5,))
    assert from_json(Prediction, to_json(prediction, indent=None)) == prediction
    assert to_json([prediction]).startswith("[")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_null_in_json(number):
    text = to_json([MemoryNeed(1, number), Prediction("a.png", ("a",), (number, 0.5))])
    need, prediction = json.loads(text, parse_constant=pytest.fail)
    assert need["constant_bytes"] is None
    assert prediction["scores"] == [None, 0.5]


def test_a_file_appears_whole_with_its_companions(tmp_path):
    target = tmp_path / "model.onnx"
    with written_whole(target) as scratch:
        assert scratch.name == target.name
        scratch.write_text("graph")
        scratch.with_name("model.onnx.data").write_text("weights")
        assert not target.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("x")])
def test_nothing_appears_on_failure_and_the_old_file_stays(failure, tmp_path):
    target = tmp_path / "model.onnx"
    target.write_text("old")

    def write_half() -> None:
        with written_whole(target) as scratch:
            scratch.write_text("half")
            raise failure

    with pytest.raises(type(failure)):
        write_half()
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert target.read_text() == "old"


def test_an_interruption_just_after_the_scratch_folder_was_made(tmp_path, monkeypatch):
    make = os.mkdir

    def interrupted(*arguments) -> None:
        make(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), written_whole(tmp_path / "m"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "why"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "not writable"), (errno.EIO, "Input/output")]
)
def test_disk_errors_are_explained(number, why, tmp_path):
    with pytest.raises(HostError) as caught, written_whole(tmp_path / "m"):
        raise OSError(number, os.strerror(number))
    assert why in caught.value.why


def test_a_missing_folder(tmp_path):
    with pytest.raises(UsageError, match="cannot write") as caught, written_whole(tmp_path / "a" / "m"):
        pass
    assert "mkdir" in caught.value.fix
