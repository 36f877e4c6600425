"""The command line: what is typed, what is printed, how it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
from infsa_models.checkpoint import save_vit
from PIL import Image

from infsa_deploy.cli import COMMANDS
from infsa_deploy.records.codec import from_json
from infsa_deploy.records.export import ExportReport, GraphSummary
from infsa_deploy.records.model import CheckResult
from infsa_deploy.records.validation import ValidationReport
from infsa_deploy.runtime import doctor
from tests.validation.test_against_reference import damage

HEAVY = ("torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "numpy", "tensorrt", "rich", "PIL")


@pytest.fixture
def checkpoint(tiny, tmp_path):
    path = tmp_path / "tiny.safetensors"
    save_vit(tiny("linear").module, path)
    return path


@pytest.fixture
def exported(run, checkpoint, tmp_path):
    code, out, _ = run("export", "--weights", checkpoint, "-o", "tiny.onnx")
    assert (code, out) == (0, "tiny.onnx\n")
    return tmp_path / "tiny.onnx"


def test_a_checkpoint_of_a_grid_that_it_does_not_say(run, tiny, tmp_path):
    safetensors.torch.save_file(tiny("linear").module.state_dict(), tmp_path / "bare.safetensors")
    typed = ("export", "--weights", "bare.safetensors", "--variant", "linear", "--heads", "3", "-o", "m.onnx")
    code, _, err = run(*typed)
    assert code == 2
    assert "not a grid of 2x2" in err
    assert "--grid" in err
    assert run(*typed, "--grid", "2x3")[0] == 0
    assert run("validate", "m.onnx")[0] == 0  # builds the reference again from what the file records
    assert run(*typed, "--grid", "6")[0] == 2


def test_help_loads_nothing_heavy():
    script = (
        "import sys\nfrom infsa_deploy.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: code = e.code\n"
        f"print(code, [m for m in {HEAVY} if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=paths())
    assert printed.stdout.splitlines()[-1] == "0 []"
    assert all(f"\n  {name} " in printed.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0
    assert out.startswith(f"Usage: infsa-deploy {name}")


def test_version_and_unknown_command(run):
    assert run("--version")[:2] == (0, "infsa-deploy, version 0.1.0\n")
    code, _, err = run("exprot")
    assert code == 2
    assert "exprot" in err


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_export_of_a_variant_alone(run, variant, tmp_path):
    code, out, err = run("export", "--variant", variant)
    assert code == 0
    assert out == f"artifacts/digits_{variant}.onnx\n"
    assert "trained digits model" in err
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == [f"digits_{variant}.onnx"]


def test_names_of_default_outputs(run):
    assert run("export", "--model", "digits_pure", "--image-size", "32x64", "--hops", "2")[1] == (
        "artifacts/digits_pure_32x64_hops2.onnx\n"
    )
    assert run("export", "--model", "digits_linear", "--batch", "2")[1] == "artifacts/digits_linear_batch2.onnx\n"
    assert run("export", "--model", "digits_linear", "--no-fold")[1] == "artifacts/digits_linear_reference.onnx\n"


def test_export_json_and_labels(run, checkpoint, tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\nowl\nant\nbee\n")
    options = ("--classes", "names.txt", "--mean", "0.1", "--std", "0.2", "--std", "0.3", "--std", "0.4", "--json")
    code, out, _ = run("export", "--weights", checkpoint, "-o", "m.onnx", *options)
    metadata = from_json(ExportReport, out).metadata
    assert code == 0
    assert metadata.classes == ("cat", "dog", "owl", "ant", "bee")
    assert metadata.image.mean == (0.1, 0.1, 0.1)
    assert metadata.image.std == (0.2, 0.3, 0.4)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--variant", "cubic"), 2, "cubic"),
        (("--model", "digits_lineal"), 2, "digits_linear"),
        (("--model", "digits_linear", "--image-size", "60"), 2, "56x56 or 64x64"),
        (("--model", "digits_linear", "--image-size", "huge"), 2, "224 or 480x640"),
        (("--model", "digits_pure", "--hops", "0"), 2, "whole number from 1"),
        (("--model", "digits_linear", "--power-iterations", "0"), 2, "power-iterations"),
        (("--model", "digits_linear", "-o", "nowhere/m.onnx"), 2, "mkdir"),
        (("--model", "digits_linear", "--classes", "nowhere.txt"), 2, "nowhere.txt"),
        (("--model", "digits_linear", "--mean", "1", "--mean", "2"), 2, "1 channels"),
        (("--model", "digits_linear", "--std", "0"), 2, "positive"),
        (("--model", "digits_linear", "--calibration", "zoo"), 2, "is for --int8"),
        (("--weights", "nowhere.safetensors"), 4, "nowhere.safetensors"),
        (("--module", "nowhere:factory"), 2, "nowhere"),
        (("--model", "digits_linear", "--low-precision-io"), 2, "--dtype fp16"),
        (("--model", "digits_pure", "--hops", "inf", "--no-fold"), 2, "--hops 100"),
    ],
)
def test_export_errors(run, options, code, message, tmp_path):
    ended, out, err = run("export", *options)
    assert (ended, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.onnx"))


def test_read_only_folder(run, checkpoint, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("infsa_deploy.files.os.mkdir", refused)
    code, _, err = run("export", "--weights", checkpoint, "-o", "m.onnx")
    assert code == 3
    assert "not writable" in err


def test_run_names_classes(run, exported, tmp_path):
    Image.fromarray(np.full((40, 30, 3), 90, np.uint8)).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", np.zeros((9, 9), np.uint8))
    code, out, _ = run("run", exported, "a.png", "b.npy", "--top", "2")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["a.png", "b.npy"]
    code, out, _ = run("run", exported, "a.png", "--top", "5", "--json")
    (prediction,) = json.loads(out)
    assert sorted(prediction["classes"]) == [f"class {index}" for index in range(5)]
    assert sum(prediction["scores"]) == pytest.approx(1.0)
    assert prediction["scores"] == sorted(prediction["scores"], reverse=True)


def test_run_with_a_fixed_batch(run, checkpoint, tmp_path):
    run("export", "--weights", checkpoint, "-o", "fixed.onnx", "--batch", "2")
    for index in range(3):
        Image.fromarray(np.full((16, 24, 3), 60 * index, np.uint8)).save(tmp_path / f"{index}.png")
    _, together, _ = run("run", "fixed.onnx", "0.png", "1.png", "2.png", "--json")
    _, alone, _ = run("run", "fixed.onnx", "2.png", "--json")
    assert json.loads(together)[2] == json.loads(alone)[0]


def test_run_errors(run, exported, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.onnx").touch()
    assert run("run", exported)[0] == 2
    for arguments, message in (
        (("missing.onnx", "text.png"), "does not exist"),
        (("empty.onnx", "text.png"), "is empty"),
        ((exported, "text.png"), "is no image"),
        ((exported, "missing.png"), "does not exist"),
        ((".", "text.png"), ". is a folder"),
        ((exported, "."), ". is a folder"),
    ):
        code, out, err = run("run", *arguments)
        assert (code, out) == (4, "")
        assert message in err


def test_validate(run, exported):
    code, out, _ = run("validate", exported, "--images", "3", "--random", "2", "--threads", "1", "--json")
    report = from_json(ValidationReport, out)
    assert code == 0
    assert report.passed
    code, out, _ = run("validate", exported, "--images", "3", "--random", "0")
    assert code == 0
    assert "needed" in out
    damage(exported, 1e-3)
    code, out, err = run("validate", exported, "--images", "3", "--random", "2")
    assert code == 6
    assert "FAIL" in out
    assert "out of tolerance" in err


def test_inspect(run, exported):
    code, out, _ = run("inspect", exported, "--json")
    summary = from_json(GraphSummary, out)
    assert code == 0
    assert summary.metadata.variant == "linear"
    assert summary.ops["infsa.EnergyPool"] == 2
    assert summary.inputs == {"image": "FLOAT [batch, 3, 16, 24]"}
    assert summary.flops == sum(summary.flops_by_op.values())
    code, out, _ = run("inspect", exported)
    assert "[batch, 3, 16, 24]" in out
    assert run("inspect", "missing.onnx")[0] == 4


def test_doctor_on_this_machine(run):
    code, out, err = run("doctor", "--json")
    results = [CheckResult(**result) for result in json.loads(out)]
    assert {"infsa-deploy", "torch", "NVIDIA driver", "TensorRT", "plugin library"} <= {r.name for r in results}
    assert all(result.fix for result in results if result.status != "ok")
    assert code == (3 if any(result.status == "problem" for result in results) else 0), err


def test_doctor_finds_two_onnxruntimes(run, monkeypatch):
    versions = {"onnxruntime": "1.0", "onnxruntime-gpu": "1.0"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    code, out, err = run("doctor")
    assert code == 3
    assert "overwrite" in " ".join(out.split())
    assert "pip uninstall" in err


def test_a_missing_extra_says_what_to_install(exported, tmp_path):
    script = (
        "import sys\nsys.modules['onnxruntime'] = None\nfrom infsa_deploy.cli import main\n"
        f"main(['run', {str(exported)!r}, 'x.png'])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=paths())
    assert ended.returncode == 3
    assert "pip install 'infsa-deploy[cpu]'" in ended.stderr


def test_a_full_disk_under_stdout_is_no_bug():
    script = "from infsa_deploy.cli import main\nmain(['doctor', '--json'])"
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=-1, text=True, env=paths())
    assert ended.returncode == 3
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_end_of_a_file_is_no_interruption(run, monkeypatch):
    def cut_off():
        raise EOFError("ran out of input")

    monkeypatch.setattr(doctor, "examine", cut_off)
    code, _, err = run("doctor")
    assert code == 1
    assert "ran out of input" in err
    assert "interrupted" not in err


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupting_an_export_leaves_nothing(stop, code, checkpoint, tmp_path):
    script = "import sys\nfrom infsa_deploy.cli import main\nmain(sys.argv[1:])"
    typed = [sys.executable, "-c", script, "export", "--weights", str(checkpoint), "-o", "m.onnx"]
    process = subprocess.Popen(typed, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=paths())
    while process.poll() is None and not list(tmp_path.glob(".m.onnx.*")):
        time.sleep(0.001)
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    left = {path.name for path in tmp_path.iterdir()}
    if process.returncode == 0:
        assert left == {checkpoint.name, "m.onnx"}
    else:
        assert process.returncode == code, err
        assert left == {checkpoint.name}, err


def paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
