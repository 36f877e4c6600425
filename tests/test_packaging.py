"""A wheel, installed in an environment of its own and used outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


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


def test_export_run_validate_outside_the_repository(wheel, tmp_path):
    """The new environment sees this one's dependencies, but of us only what the wheel brings."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def typed(*arguments: str) -> str:
        script = "from infsa_deploy.cli import main; main()"
        command = [str(python), "-c", script, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    found = subprocess.check_output(
        [python, "-c", "import infsa_deploy, infsa_models; print(infsa_deploy.__file__, infsa_models.__file__)"],
        cwd=tmp_path,
        env=environment,
        text=True,
    )
    assert all(path.startswith(str(site)) for path in found.split())
    assert typed("export", "--variant", "linear") == "artifacts/digits_linear.onnx\n"
    sample = site / "infsa_models" / "samples" / "digit_7.png"
    (prediction,) = json.loads(typed("run", "artifacts/digits_linear.onnx", str(sample), "--json"))
    assert prediction["classes"][0] == "7"
    report = json.loads(typed("validate", "artifacts/digits_linear.onnx", "--images", "8", "--random", "2", "--json"))
    assert report["passed"]
