"""Engines in C++, on a stand-in for TensorRT-RTX and one for the driver, under sanitizers.

The library is the one that is installed, compiled against TensorRT's headers; the loader finds the stand-ins first.
The stand-in driver runs a stream's work when it is synchronised, refuses calls without a context, and counts what is
alive, and contexts pushed and not popped, which has to be nothing at the end of each program.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infsa_deploy.engine import driver, sidecar
from infsa_deploy.errors import DeployError
from infsa_deploy.files import sha256
from infsa_deploy.records.codec import to_json
from infsa_deploy.records.engine import Gpu, PluginUse
from infsa_deploy.runtime.sessions.trt import check_profile
from tests.plugins.embed.conftest import RECORD, VERSION, execute, reports

NO_WASTE = "alive 0"


def expected(images: np.ndarray) -> np.ndarray:
    """Ten times the mean of each fifth value of an image."""
    flat = images.reshape(len(images), -1).astype(np.float64)
    return np.stack([10 * flat[:, k::5].mean(axis=1) for k in range(5)], axis=1)


@pytest.fixture
def batches(rng, tmp_path):
    """Files of random images, and their logits: batches(2, 4)."""

    def make(*sizes: int):
        images = [rng.standard_normal((size, 3, 4, 4)).astype(np.float32) for size in sizes]
        paths = [tmp_path / f"images_{index}" for index in range(len(images))]
        for path, batch in zip(paths, images, strict=True):
            batch.tofile(path)
        return paths, np.concatenate([expected(batch) for batch in images])

    return make


def check(path, logits: np.ndarray) -> None:
    # the sum of at most 10 values is exact in double but for 1e-15; what remains is one rounding to float32
    np.testing.assert_allclose(np.fromfile(path, np.float32).reshape(-1, 5), logits, rtol=2**-24, atol=1e-14)


def test_shapes_in_turn(probe, stand_ins, engine, batches, tmp_path):
    paths, logits = batches(2, 4, 1, 3)
    result = probe("run", engine(), "plain", tmp_path / "out", *paths, on=stand_ins)
    check(tmp_path / "out", logits)
    assert result.stdout.splitlines() == ["log 2 a warning", "launches 0", NO_WASTE]


def test_cuda_graphs_are_captured_once_a_shape(probe, stand_ins, engine, batches, tmp_path):
    paths, logits = batches(2, 2, 4, 2, 4)
    result = probe("run", engine(), "graph", tmp_path / "out", *paths, on=stand_ins)
    check(tmp_path / "out", logits)
    assert result.stdout.splitlines()[1:] == ["launches 5", NO_WASTE]


def test_a_stream_and_buffers_of_the_callers(probe, stand_ins, engine, batches, tmp_path):
    """Enqueued and then launched as a graph, after the Engine object is gone."""
    (path,), logits = batches(3)
    result = probe("stream", engine(), tmp_path / "out", path, on=stand_ins)
    check(tmp_path / "out", np.concatenate([logits, logits]))
    assert result.stdout.splitlines() == [NO_WASTE]


@pytest.mark.parametrize("mode", ["plain", "graph"])
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_contexts_in_several_threads(probe, stand_ins, engine, mode, sanitizer):
    result = probe("threads", engine(), 6, mode, on=stand_ins, sanitizer=sanitizer)
    assert result.stdout.splitlines() == ["wrong 0", NO_WASTE]


def test_half_precision_inputs(probe, stand_ins, engine, batches, tmp_path):
    """The library converts; the stand-in reads float32, so only what it was given is looked at: twice the bytes."""
    (path,), _ = batches(1)
    half = replace(RECORD.inputs["image"], dtype="float16")
    result = probe("misuse", engine(inputs={"image": half}), path, on=stand_ins)
    problems = [text.partition("\n")[0] for _, text in reports(result.stdout)]
    assert "input 'image' is int32 1x3x4x4 in 96 bytes." in problems


def test_what_a_caller_gets_wrong(probe, stand_ins, engine, batches):
    (path,), _ = batches(1)
    result = probe("misuse", engine(), path, on=stand_ins)
    codes, texts = zip(*reports(result.stdout), strict=True)
    assert codes == (2,) * 7 + (3,) * 6 + (0,)
    with pytest.raises(DeployError) as outside:
        check_profile(RECORD, {"image": (5, 3, 4, 4)})
    assert texts[0] == str(outside.value)
    for text, part in zip(
        texts[1:],
        [
            "of shape 1x3x4 is outside the engine's profile",
            "is int32 1x3x4x4 in 192 bytes",
            "is float32 1x3x4x4 in 191 bytes",
            "input 'image' is missing",
            "the engine has no input 'picture'.\n  why: it has 'image'.",
            "the shape of 'logits' is not known",
            "the engine did not run.\n  why: an address is not set",
            "cuMemAlloc failed.\n  why: CUDA error 2, CUDA_ERROR_OUT_OF_MEMORY.\n  fix: take a smaller batch.",
            "cuMemAllocHost failed",
            "cuStreamCreate failed",
            "cuStreamEndCapture failed",
            "cuGraphInstantiateWithFlags failed",
            "",
        ],
        strict=True,
    ):
        assert part in text
    assert result.stdout.splitlines()[-1] == NO_WASTE


def test_a_graph_that_cannot_be_captured_is_freed(probe, stand_ins, engine, batches):
    (path,), _ = batches(1)
    result = probe("capture", engine("no-capture"), path, on=stand_ins)
    ((code, text),) = reports(result.stdout)
    assert (code, text.splitlines()[0]) == (3, "the engine cannot be captured as a CUDA graph.")
    assert result.stdout.splitlines()[-1] == NO_WASTE


def sentence(function, *arguments) -> tuple[int, str]:
    """Exit code and text of what the Python side raises."""
    with pytest.raises(DeployError) as failed:
        function(*arguments)
    return failed.value.exit_code, str(failed.value)


def test_without_a_driver_the_sentence_is_pythons(probe, engine, monkeypatch):
    path = engine()
    monkeypatch.setattr(driver, "LIBRARY", "libcuda.so.1")
    if driver.find_gpu() is not None:
        pytest.skip("needs a machine without a GPU")
    assert reports(probe("load", path).stdout) == [sentence(driver.require_gpu, f"running {path}")]


def test_a_driver_without_a_gpu(probe, stand_ins, engine, monkeypatch):
    monkeypatch.setenv("STAND_IN_NO_GPU", "1")
    ((code, text),) = reports(probe("load", engine(), on=stand_ins).stdout)
    assert code == 3
    assert "libcuda.so.1 is not installed here, or shows no GPU." in text


def test_engines_for_another_gpu_version_or_flavour(probe, stand_ins, engine):
    gpu = Gpu("Stand-in A100", "sm80", 0)
    for changes in ({"targets": ("sm90", "sm120")}, {"flavour_version": "1.6.0.1"}):
        path = engine(**changes)
        found = reports(probe("load", path, on=stand_ins).stdout)
        assert found == [sentence(sidecar.check_host, path, sidecar.read_sidecar(path), gpu, VERSION)]
    ((code, text),) = reports(probe("load", engine(flavour="tensorrt"), on=stand_ins).stdout)
    assert code == 3
    assert "was built by tensorrt; this library runs engines of tensorrt-rtx." in text


def test_plans_that_do_not_load(probe, stand_ins, engine):
    path = engine("refused")
    ((code, text),) = reports(probe("load", path, on=stand_ins).stdout)
    assert code == 3
    assert text.startswith(f"tensorrt-rtx cannot load {path}.\n  why: Serialization assertion failed\n")
    ((code, text),) = reports(probe("load", engine("no-context"), on=stand_ins).stdout)
    assert (code, text.splitlines()[:2]) == (3, ["the engine cannot be run.", "  why: no room for activations"])


WITHIN = PluginUse("plugins", "lib.so", "0" * 64, True, {}, "engine")
PORTABLE = {"version_compatible": True}


@pytest.mark.parametrize("changes", [{"plugins": WITHIN}, {"options": PORTABLE}], ids=["embedded", "portable"])
def test_code_in_the_plan_runs_where_the_caller_trusts_it(probe, stand_ins, engine, changes):
    """The hash in the sidecar is right in each case: it proves nothing of who wrote the two files."""
    path = engine("host-code", **changes)
    ((code, text),) = reports(probe("load", path, on=stand_ins).stdout)
    assert (code, text.splitlines()[0]) == (2, f"{path} holds code that runs on the processor.")
    for trust in (("allow",), ("trust", sha256(path)), ("trust", "0" * 64, "trust", sha256(path).upper())):
        assert reports(probe("load", path, *trust, on=stand_ins).stdout) == [(0, "")]
    for trust in (("trust", "0" * 64), ("trust", "0" * 64, "allow"), ("trust", "")):
        ((code, text),) = reports(probe("load", path, *trust, on=stand_ins).stdout)
        assert (code, text.splitlines()[0]) == (4, f"{path} is not among the files that are trusted.")


def test_code_that_the_sidecar_does_not_tell_of_does_not_run(probe, stand_ins, engine):
    """TensorRT is not allowed to run it, whatever the caller allows."""
    assert reports(probe("load", engine("host-code"), "allow", on=stand_ins).stdout)[0][0] == 3


@pytest.mark.parametrize(("machine", "code"), [("\x3e", 2), ("\xb7", 2), ("\xbe", 0)], ids=["x86", "Arm", "CUDA"])
def test_a_plan_is_searched_for_code(probe, stand_ins, engine, machine, code):
    """The sidecar hides that the plan holds a library; code for GPUs, of which plans are full, is none."""
    path, header = engine(), b"\x7fELF\2\1\1" + bytes(9) + b"\3\0" + machine.encode("latin-1") + bytes(40)
    path.write_bytes(b"a plan \x7fELF" + header)
    record = replace(RECORD, engine_sha256=sha256(path), engine_bytes=path.stat().st_size)
    sidecar.sidecar_path(path).write_text(to_json(record))
    assert [found[0] for found in reports(probe("load", path, on=stand_ins).stdout)] == [code]
    assert reports(probe("load", path, "allow", on=stand_ins).stdout) == [(0, "")]


def test_a_hash_that_is_given_is_heeded_without_code_too(probe, stand_ins, engine):
    path = engine()
    assert reports(probe("load", path, "trust", sha256(path), on=stand_ins).stdout) == [(0, "")]
    assert reports(probe("load", path, "trust", "0" * 64, on=stand_ins).stdout)[0][0] == 4


def test_a_library_beside_the_plan_needs_trust_as_code_in_it(probe, stand_ins, engine, tmp_path):
    library = tmp_path / "lib.so"
    library.write_bytes(b"a library")
    path = engine("plugins", plugins=PluginUse("plugins", "lib.so", sha256(library), False, {}, "engine"))
    ((code, text),) = reports(probe("load", path, on=stand_ins).stdout)
    assert (code, text.splitlines()[0]) == (2, f"{library} holds code that runs on the processor.")
    both = ("trust", sha256(path), "trust", sha256(library))
    for trust in (("allow",), both, ("library", library)):
        assert reports(probe("load", path, *trust, on=stand_ins).stdout) == [(0, "")]
    ((code, text),) = reports(probe("load", path, "trust", sha256(path), on=stand_ins).stdout)
    assert (code, text.splitlines()[0]) == (4, f"{library} is not among the files that are trusted.")


@pytest.mark.parametrize("name", ["../evil.so", "/tmp/evil.so", "lib/evil.so"])
def test_no_library_is_loaded_from_another_folder(probe, stand_ins, engine, tmp_path, name):
    """The library is there, with the recorded hash, and the caller allows code: the name alone is refused."""
    place = tmp_path / "engines"
    (place / "lib").mkdir(parents=True)
    evil = place / name if not name.startswith("/") else tmp_path / "evil.so"
    evil.write_bytes(b"a library")
    named = str(evil) if name.startswith("/") else name
    path = engine("plugins", "engines/m.engine", plugins=PluginUse("plugins", named, sha256(evil), False, {}, "engine"))
    ((code, text),) = reports(probe("load", path, "allow", on=stand_ins).stdout)
    assert code == 4
    assert f'plugins.library is "{named}"'[:60] in text


def test_plugins_beside_the_plan_must_be_those_of_the_build(probe, stand_ins, engine, tmp_path):
    library, broken = tmp_path / "lib.so", tmp_path / "broken.so"
    for path in (library, broken):
        path.write_bytes(b"a library")
    beside = PluginUse("plugins", "lib.so", sha256(library), False, {}, "engine")
    path = engine("plugins", plugins=beside)
    portable = engine("host-code plugins", "portable.engine", plugins=beside, options=PORTABLE)
    assert reports(probe("load", portable, "allow", on=stand_ins).stdout) == [(0, "")]
    ((code, text),) = reports(probe("load", path, "library", broken, on=stand_ins).stdout)
    assert (code, text.splitlines()[0]) == (3, f"{broken} does not load.")
    library.write_bytes(b"another library")
    found = reports(probe("load", path, "allow", on=stand_ins).stdout)
    assert found == [sentence(sidecar.check_plugins, path, sidecar.read_sidecar(path), library)]
    library.unlink()
    ((code, text),) = reports(probe("load", path, on=stand_ins).stdout)
    assert (code, text.splitlines()[0]) == (3, f"plugin library {library} does not exist.")


def test_the_plan_that_is_checked_is_the_plan_that_is_loaded(probe, stand_ins, engine, tmp_path):
    """The stand-in driver exchanges the plan at its first call, which comes after the check and before the load."""
    path, other = engine("a plan"), tmp_path / "other"
    other.write_text("refused")
    exchange = {"STAND_IN_EXCHANGE": f"{other}:{path}"}
    assert reports(probe("load", path, on=stand_ins, **exchange).stdout) == [(0, "")]
    assert path.read_text() == "refused"


def test_sanitizers_are_on(probe, installed):
    """What the tests above rest on: both programs are linked with what would have found an error."""
    for sanitizer, library in (("asan", "libasan"), ("tsan", "libtsan")):
        probe("record", sanitizer=sanitizer)
        found = execute("ldd", installed(sanitizer) / "lib" / "libinfsa_engine.so").stdout
        assert library in found
