"""The sidecar in C++: what is read, and refused in the words of the Python side."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from infsa_deploy.engine import sidecar
from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.engine_records import Gpu, PluginUse, TensorProfile
from infsa_deploy.errors import DeployError
from infsa_deploy.records import ImageSpec
from infsa_deploy.runtime.trt import _metadata
from tests.plugins.embed.conftest import RECORD, execute, reports


def outcome(function, *arguments) -> tuple[int, str]:
    """Exit code and text of what the Python side raises, (0, "") where it raises nothing."""
    try:
        function(*arguments)
    except DeployError as error:
        return error.exit_code, str(error)
    return 0, ""


def read_and_check(path) -> None:
    sidecar.check_file(path, sidecar.read_sidecar(path))


def test_what_is_read(probe, engine):
    inputs = {"zoom": TensorProfile("float32", (1,)), "image": RECORD.inputs["image"]}
    spec = ImageSpec(3, 32, 48, (0.25,) * 3, (0.5,) * 3, 0.875, 16)
    path = engine(inputs=inputs, image=spec, options={"version_compatible": True})
    assert probe("show", path).stdout.splitlines() == [
        "tensorrt-rtx 1.7.1.116 sm80 m.onnx",
        "zoom float32 1  ",
        "image float32 -1x3x4x4 1x3x4x4 4x3x4x4",
        "logits float32 -1x5  ",
        "3x32x48 0.25 0.5 0.875 16",
        "ant bee cat doe elk ",
        "none 01",
    ]


def test_damaged_files_in_pythons_words(probe, engine, tmp_path):
    paths = [engine(name=f"{name}.engine") for name in ("good", "short", "changed", "longer", "alone")]
    _, short, changed, longer, alone = paths
    short.write_text("a p")
    changed.write_text("a PLAN")
    longer.write_text("a plan and more")
    sidecar_path(alone).unlink()
    big = engine("x" * 1_234_567, "big.engine")
    big.write_text("x" * 1_234)
    paths += [big, tmp_path / "none.engine"]
    found = reports(probe("record", *paths).stdout)
    assert found == [outcome(read_and_check, path) for path in paths]
    assert [code for code, _ in found] == [0, *[4] * 6]


def test_hashes_of_every_length_of_the_last_block(probe, engine):
    """SHA-256 pads to blocks of 64 bytes; files of 0 to 130 bytes, and two around the reader's own block."""
    sizes = [*range(131), (1 << 20) - 1, (1 << 20) + 65]
    paths = [engine("abcdefg" * (size // 7) + "." * (size % 7), f"{size}.engine") for size in sizes]
    assert reports(probe("record", *paths).stdout) == [(0, "")] * len(paths)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record | {"invented": 1},
        lambda record: {key: value for key, value in record.items() if key != "targets"},
        lambda record: record | {"targets": "sm80"},
        lambda record: record | {"inputs": {"image": {"dtype": "float8", "shape": [1]}}},
        lambda record: [record],
        lambda record: None,
    ],
    ids=["from the future", "incomplete", "another type", "unknown type", "a list", "null"],
)
def test_sidecars_that_cannot_be_read(probe, engine, change):
    """The reason is the JSON library's own; the rest is Python's sentence."""
    path = engine()
    record = json.loads(sidecar_path(path).read_text())
    sidecar_path(path).write_text(json.dumps(change(record)))
    ((code, text),) = reports(probe("record", path).stdout)
    assert code == 4
    assert text.splitlines()[0] == f"{sidecar_path(path)} cannot be read."
    assert text.splitlines()[-1] == f"  fix: {sidecar.BUILD_AGAIN}"
    sidecar_path(path).write_text("no JSON")
    assert reports(probe("record", path).stdout)[0][0] == 4


@pytest.mark.parametrize("image", [{"mean": [0.5]}, {"height": 0}, {"crop_fraction": 0}, {"multiple_of": 0}])
def test_image_inputs_that_are_impossible(probe, engine, image):
    path = engine()
    record = json.loads(sidecar_path(path).read_text())
    record["metadata"]["image"] |= image
    sidecar_path(path).write_text(json.dumps(record))
    ((code, text),) = reports(probe("record", path).stdout)
    assert code == 4
    assert "the image input is impossible" in text


@pytest.mark.parametrize(
    ("changes", "sm", "version"),
    [
        ({}, "sm80", "1.7.1.116"),
        ({}, "sm90", "1.7.1.116"),
        ({"targets": ("sm86", "sm90")}, "sm80", "1.7.1.116"),
        ({}, "sm80", "1.8.0.1"),
        ({"options": {"version_compatible": True}}, "sm80", "1.8.0.1"),
        ({"options": {"version_compatible": True}}, "sm80", "1.6.0.1"),
        ({"options": {"version_compatible": True}}, "sm80", "2.0.0.1"),
        ({"options": {"hardware_compatible": True}}, "sm90", "1.7.1.116"),
        ({"options": {"hardware_compatible": True}}, "sm75", "1.7.1.116"),
    ],
)
def test_gpus_and_versions_in_pythons_words(probe, engine, changes, sm, version):
    path = engine(**changes)
    expected = outcome(sidecar.check_host, path, sidecar.read_sidecar(path), Gpu("A GPU", sm, 0), version)
    assert reports(probe("host", path, "A GPU", sm, version).stdout) == [expected]


def test_plugin_libraries_in_pythons_words(probe, engine, tmp_path):
    library = tmp_path / "lib.so"
    library.write_bytes(b"a library")
    path = engine(plugins=PluginUse("plugins", "lib.so", "1" * 64, False, {}, "engine"))
    expected = outcome(sidecar.check_plugins, path, sidecar.read_sidecar(path), library)
    assert expected[0] == 3
    assert reports(probe("plugins", path, library).stdout) == [expected]


def test_models_from_elsewhere_in_pythons_words(installed, engine, tmp_path):
    example = installed("asan") / "bin" / "infsa_classify"
    result = execute(example, "--tensor", tmp_path / "out", engine(metadata=None), "image.png")
    code, text = outcome(_metadata, replace(RECORD, metadata=None))
    assert (result.returncode, result.stderr) == (code, f"error: {text}\n")
