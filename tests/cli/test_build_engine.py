"""`infsa-deploy build-engine` as typed."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infsa_deploy.cli import main
from infsa_deploy.engine.flavor import TENSORRT_RTX
from infsa_deploy.engine.sidecar import read_sidecar
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.records.codec import from_json
from infsa_deploy.records.engine import EngineForecast, EngineInspection, EngineRecord
from tests.cli.test_cli import paths
from tests.engine.quantized import quantized
from tests.runtime.any_interface import TWO_INPUTS, write

SCRIPT = "import sys\nfrom infsa_deploy.cli import main\nmain(sys.argv[1:])"

if not TENSORRT_RTX.installed:
    pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx-cu13", allow_module_level=True)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Type build-engine and what follows in an empty folder; returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def typed(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["build-engine", *map(str, arguments)])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return typed


@pytest.fixture(scope="module")
def _source(tmp_path_factory):
    from tests.conftest import _tiny

    path = tmp_path_factory.mktemp("export") / "tiny.onnx"
    export_reference(_tiny("linear"), path)
    return path


@pytest.fixture
def model(_source, tmp_path):
    (tmp_path / "artifacts").mkdir()
    return shutil.copy(_source, tmp_path / "artifacts" / "tiny.onnx")


def test_without_an_export(run):
    code, out, err = run("--fp16")
    assert (code, out) == (2, "")
    assert "infsa-deploy export --variant linear" in err


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_newest_export_is_taken_and_retyped(run, model, tmp_path, precision):
    older = shutil.copy(model, tmp_path / "artifacts" / "older.onnx")
    os.utime(older, (1, 1))
    code, out, err = run(f"--{precision}", "--plugins", "off")
    assert (code, out) == (0, f"artifacts/tiny_{precision}_bodies.engine\n"), err
    assert "taking the newest export, artifacts/tiny.onnx" in err
    assert "no GPU here" in err
    record = read_sidecar(tmp_path / out.strip())
    assert record.precision.asked == precision
    narrow = record.precision.products[precision]
    assert sum(record.precision.products.values()) - narrow == sum(
        "conv" in name for name in record.precision.kept_fp32
    )
    assert record.metadata.dtype == precision
    assert record.onnx == "tiny.onnx"
    assert record.inputs["image"].dtype == "float32"


def test_int8_leaves_the_rest_in_fp16(run, model, tmp_path):
    model = quantized(Path(model))
    code, out, err = run(model, "--int8", "--plugins", "off", "-o", "m.engine", "--json")
    assert code == 0, err
    products = from_json(EngineRecord, out).precision.products
    assert sorted(products) == ["fp16", "int8"]
    assert "int8 where the model has Q/DQ nodes, fp16 elsewhere" in err


def test_json_and_both_spellings_of_shapes(run, model):
    shapes = ("--min-shapes", "image:2x3x16x24", "--opt-shapes", "image:[2,3,16,24]", "--max-shapes", "image:4x3x16x24")
    code, out, _ = run(model, "--plugins", "off", *shapes, "-o", "x.plan", "--target", "sm80,sm89", "--json")
    record = from_json(EngineRecord, out)
    assert code == 0
    assert [record.inputs["image"].minimum[0], record.inputs["image"].maximum[0]] == [2, 4]
    assert record.targets == ("sm80", "sm89")


def test_what_is_stated_of_one_input_counts_for_the_other(run, tmp_path):
    write(TWO_INPUTS, tmp_path / "two.onnx")
    assert run("two.onnx", "--max-shapes", "image:4x3x8x8", "--plugins", "off")[0] == 0
    inputs = read_sidecar(tmp_path / "two_bodies.engine").inputs
    assert {name: profile.maximum for name, profile in inputs.items()} == {"image": (4, 3, 8, 8), "mask": (4, 3)}


def test_dry_run(run, model, tmp_path):
    code, out, err = run("--plugins", "off", "--dry-run")
    assert code == 0
    assert "(not built)" in out
    assert "predicted memory" in err
    code, out, _ = run("--plugins", "off", "--dry-run", "--json")
    assert from_json(EngineForecast, out).plugins.mode == "bodies"
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["tiny.onnx"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("missing.onnx",), 4, "does not exist"),
        (("--plugins", "missing.so"), 2, "plugin library missing.so does not exist"),
        (("--plugins", "off", "--int8"), 5, "none of 18 products is quantized"),
        (("--plugins", "off", "--target", "sm90"), 2, "cannot build for sm90"),
        (("--plugins", "off", "--target", "a100"), 2, "write sm80"),
        (("--plugins", "off", "--max-shapes", "image:4"), 2, "does not fit the model"),
        (("--plugins", "off", "--max-shapes", "4x3"), 2, "image:1x3x224x224"),
        (("--plugins", "off", "--workspace", "4"), 2, "4G"),
        (("--plugins", "off", "--timing-cache", "x"), 2, "has no --timing-cache"),
        (("--plugins", "off", "--backend", "tensorrt"), 3, "pip install"),
        (("--plugins", "off", "-o", "nowhere/m.engine"), 2, "mkdir"),
        (("--plugins", "off", "-o", "artifacts/tiny.onnx"), 2, "artifacts/tiny.onnx would be replaced"),
        (("other.engine",), 2, "give an ONNX file"),
    ],
)
def test_errors(run, model, tmp_path, options, code, message):
    ended, out, err = run(*options)
    assert (ended, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert not [path for path in tmp_path.rglob("*.engine*") if path.suffix != ".log"]


def test_verbose_shows_the_log(run, model, tmp_path):
    code, _, err = run("--plugins", "off", "-v")
    assert code == 0
    assert "[verbose]" in err
    assert "[verbose]" in (tmp_path / "artifacts" / "tiny_bodies.engine.log").read_text()


def test_a_terminal_shows_the_phase_and_the_time(model, tmp_path):
    reader, writer = pty.openpty()
    typed = [sys.executable, "-c", SCRIPT, "build-engine", "--plugins", "off"]
    process = subprocess.Popen(typed, cwd=tmp_path, stdout=subprocess.PIPE, stderr=writer, env=paths())
    os.close(writer)
    shown = b""
    while block := _read(reader):
        shown += block
    assert process.wait(60) == 0
    assert b"building the engine" in shown
    assert b"0:00:0" in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # the other end of a terminal closes with an error
        return b""


def test_interrupt(model, tmp_path):
    heeding = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background does not
    )
    typed = [sys.executable, "-c", heeding + SCRIPT, "build-engine", "--plugins", "off"]
    process = subprocess.Popen(typed, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=paths())
    log = tmp_path / "artifacts" / "tiny_bodies.engine.log"
    while process.poll() is None and not log.exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    left = {path.name for path in (tmp_path / "artifacts").iterdir()}
    assert process.returncode == 130, err
    assert left == {"tiny.onnx", log.name}
    assert "interrupted" in err


def test_inspect_shows_the_sidecar(run, model, capsys):
    run("--plugins", "off", "-o", "m.engine")
    for options in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            main(["inspect", "m.engine", *options])
        assert not ended.value.code
        out = capsys.readouterr().out
        if options:
            assert from_json(EngineInspection, out).engine.flavour == "tensorrt-rtx"
        else:
            assert "18 of 18 in fp32" in out
            assert "not opened: there is no GPU here" in out


def test_running_and_validating_an_engine_need_a_gpu(run, model, capsys):
    run("--plugins", "off", "-o", "m.engine")
    for arguments in (["run", "m.engine", "x.png"], ["validate", "m.engine"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 3
        assert "needs an NVIDIA GPU and its driver" in capsys.readouterr().err
