"""The sidecar in C++: what is read, and refused in the words of the Python side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from infsa_deploy.engine import sidecar
from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.errors import DeployError
from infsa_deploy.records.engine import Gpu, PluginUse, TensorProfile
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.sessions.trt import _metadata
from tests.plugins.embed.conftest import RECORD, execute, reports
from tests.sidecar_cases import damaged, odd


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
    """SHA-256 pads to blocks of 64 bytes; files of 1 to 130 bytes, and two of a megabyte."""
    sizes = [*range(1, 131), (1 << 20) - 1, (1 << 20) + 65]
    paths = [engine("abcdefg" * (size // 7) + "." * (size % 7), f"{size}.engine") for size in sizes]
    assert reports(probe("record", *paths).stdout) == [(0, "")] * len(paths)


def read_all(probe, good: Path, sidecars: Mapping[str, bytes]) -> dict[str, tuple[int, str]]:
    """What reading the engine `good` says with each of the sidecars, by their names: exit code and error."""
    paths = [good.with_name(f"{index}.engine") for index in range(len(sidecars))]
    for path, content in zip(paths, sidecars.values(), strict=True):
        path.write_bytes(good.read_bytes())
        sidecar_path(path).write_bytes(content)
    found = reports(probe("record", *paths).stdout)
    return dict(zip(sidecars, found, strict=True))


def test_sidecars_that_are_refused(probe, engine):
    """The reasons are C++'s own; the rest is Python's sentence."""
    path = engine()
    text = sidecar_path(path).read_text()
    cases = damaged(text)
    assert text.encode() not in cases.values()
    for name, (code, error) in read_all(probe, path, cases).items():
        assert code == 4, name
        assert error.splitlines()[0].endswith(".engine.json cannot be read."), name
        assert error.splitlines()[-1] == f"  fix: {sidecar.BUILD_AGAIN}", name


def test_reasons_say_where_and_what(probe, engine):
    """One of each kind of rule, so that no case above is refused for another reason than its own."""
    path = engine()
    reasons = {
        "height 3.9": 'metadata.image.height is 3.9, not of type "integer"',
        "height True": 'metadata.image.height is true, not of type "integer"',
        "height 4294967299": "metadata.image.height is 4294967299, not at most 1048576",
        "library '../evil.so'": 'plugins.library is "../evil.so", not a bare file name',
        "version '1.7\\n'": "a string holds a control character",
        "version 'abc'": 'flavour_version is "abc", not of the form ^[0-9]',
        f"hash {'G' * 64!r}": f'engine_sha256 is "{"G" * 59}..., not of the form ^[0-9a-f]',
        "a rank of 9": "inputs.image.shape is [1,1,1,1,1,1,1,1,1], not of at most 8 entries",
        "a rank of 100,000": f"inputs.image.shape is [{'1,' * 29}1..., not of at most 8 entries",
        "bounds of another rank": "the shapes of 'image' have different ranks",
        "no bounds for a free size": "the shapes of 'image' have one bound without another",
        "no bounds at all": "the shapes of 'image' leave a size free without bounds",
        "a bound that is not the fixed size": "the shapes of 'image' have bounds beside a fixed size",
        "a batch of 2^21": "the largest batch of 'image' is above 1048576",
        "too many elements": "'image' has more elements than 17179869184",
        "too many pixels": "the image input has more pixels than 2147483647",
        "too few logits": "the logits are [-1,2] for 5 classes",
        "std [0.5]": "the image input has not one mean and std a channel",
        "plugins without a library": "plugins.library does not go with the mode plugins",
        "embedded without plugins": "plugins are embedded that are not used",
        "an object with 20,000 keys": "an object has more than 16384 keys",
        "a key twice": "key 'flavour' stands twice",
        "nested 200,000 deep": "it is nested more than 32 deep",
        "larger than 16 MiB": "it is larger than 16777216 bytes",
        "a byte-order mark": "it begins with a byte-order mark",
        "an unknown entry of the image": "unknown entry 'metadata.image.invented'",
        "no targets": 'it has no entry "targets"',
    }
    cases = {name: content for name, content in damaged(sidecar_path(path).read_text()).items() if name in reasons}
    for name, (_, error) in read_all(probe, path, cases).items():
        assert f"  why: {reasons.pop(name)}" in error, (name, error)
    assert not reasons


def test_sidecars_that_look_odd_are_read(probe, engine):
    path = engine()
    found = read_all(probe, path, odd(sidecar_path(path).read_text()))
    assert all(answer == (0, "") for answer in found.values()), found


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
