"""A wheel, installed in an environment of its own and used outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from infsa_deploy.engine.flavor import TENSORRT_RTX

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    typed = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    typed += ["-C", "cmake.define.INFSA_PLUGINS_SM=80", "-C", "cmake.define.INFSA_PLUGINS_PTX=OFF"]  # minutes otherwise
    subprocess.run(typed, check=True)
    (built,) = folder.glob("infsa_deploy-*.whl")
    return built


def test_the_wheel_holds_package_models_weights_and_licence(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"infsa_deploy/py.typed", "infsa_deploy/cli/export.py", "infsa_models/digits_source.npz"} <= names
    assert {f"infsa_models/weights/digits_{v}.safetensors" for v in ("linear", "pure", "softmax")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {"infsa_plugins/__init__.py", "infsa_plugins/lib/libinfsa_plugins.so"} <= names
    assert not [name for name in names if name.startswith(("tests", "scripts"))]


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """The packages of a new environment: this one's dependencies, but of us only what the wheel brings."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    found = subprocess.check_output(
        [folder / "bin" / "python", "-c", "import site; print(site.getsitepackages()[0])"], text=True
    )
    packages = Path(found.strip())
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return packages


@pytest.fixture
def typed(site, tmp_path) -> Callable[..., str]:
    """Type a command in an empty folder; returns what it prints. Without a command: Python code."""
    python = site.parents[2] / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def run(*arguments: str, code: str = "from infsa_deploy.cli import main; main()") -> str:
        command = [str(python), "-c", code, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    return run


def test_export_run_validate_outside_the_repository(typed, site):
    found = typed(code="import infsa_deploy, infsa_models; print(infsa_deploy.__file__, infsa_models.__file__)")
    assert all(path.startswith(str(site)) for path in found.split())
    assert typed("export", "--variant", "linear") == "artifacts/digits_linear.onnx\n"
    sample = site / "infsa_models" / "samples" / "digit_7.png"
    (prediction,) = json.loads(typed("run", "artifacts/digits_linear.onnx", str(sample), "--json"))
    assert prediction["classes"][0] == "7"
    report = json.loads(typed("validate", "artifacts/digits_linear.onnx", "--images", "8", "--random", "2", "--json"))
    assert report["passed"]


@pytest.mark.skipif(not TENSORRT_RTX.installed, reason="needs TensorRT-RTX: pip install tensorrt-rtx-cu13")
def test_two_commands_end_with_an_engine(typed, site, tmp_path):
    assert typed("export", "--variant", "linear") == "artifacts/digits_linear.onnx\n"
    assert typed("build-engine", "--fp16") == "artifacts/digits_linear_fp16.engine\n"
    plan = (tmp_path / "artifacts" / "digits_linear_fp16.engine").read_bytes()
    sidecar = json.loads((tmp_path / "artifacts" / "digits_linear_fp16.engine.json").read_text())
    assert sidecar["plugins"]["layers"] == {"infsa::EnergyPool::1": 4, "infsa::CentralityPool::1": 4}
    assert set(sidecar["precision"]["products"]) == {"fp16"}
    assert (site / "infsa_plugins" / "lib" / "libinfsa_plugins.so").read_bytes() in plan
