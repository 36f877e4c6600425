"""Fixtures of the engine tests: small exports, a stand-in plugin library, and a stand-in for TensorRT proper."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infsa_deploy.config import EngineConfig
from infsa_deploy.engine.build import Listener, build_engine
from infsa_deploy.engine.flavor import TENSORRT_RTX, alias_folder
from infsa_deploy.records.engine import EngineRecord, Gpu

SOURCE = Path(__file__).parent / "plugin_double.cpp"
PLUGINS = {  # plugin layers of the tiny models
    "linear": {"infsa::EnergyPool::1": 2, "infsa::CentralityPool::1": 2},
    "pure": {"infsa::NeumannAttention::1": 2},
}
A100 = Gpu("NVIDIA A100-SXM4-80GB", "sm80", 80 << 30)

# TensorRT has no wheel for a machine without a GPU. This module has its name, its version and the API that
# TensorRT-RTX shares with it; the target it would read from the GPU is set to SM80. Its Runtime reports the layers
# that `LAYERS` names, for nothing can be deserialised here.
FAKE_TENSORRT = """
import json
import tensorrt_rtx
from tensorrt_rtx import *
__version__ = "11.0.0.114"
LAYERS = ["PluginV3"] * 4

class Builder(tensorrt_rtx.Builder):
    def create_builder_config(self):
        config = super().create_builder_config()
        config.num_compute_capabilities = 1
        config.set_compute_capability(tensorrt_rtx.ComputeCapability.SM80, 0)
        return config

class Runtime:
    def __init__(self, logger):
        self.engine_host_code_allowed = False
    def deserialize_cuda_engine(self, plan):
        return self
    def create_engine_inspector(self):
        return self
    def get_engine_information(self, format):
        return json.dumps({"Layers": [{"LayerType": kind} for kind in LAYERS]})
"""


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _why_no_double() -> str:
    missing = [package for package in ("kernel_lens", "triton") if _folder(package) is None]
    if missing:
        return f"needs headers of TensorRT and CUDA: {', '.join(missing)} not installed"
    return "" if shutil.which("g++") else "needs g++ to compile the stand-in plugin library"


@pytest.fixture(autouse=True)
def _need_rtx():
    if not TENSORRT_RTX.installed:
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx-cu13")


@pytest.fixture(scope="session")
def compile_double(tmp_path_factory) -> Callable[..., Path]:
    """Compile plugin_double.cpp with macros: compile_double(PLUGIN_VERSION='"2"')."""
    if reason := _why_no_double():
        pytest.skip(reason)
    includes = [f"-I{_folder('kernel_lens')}/include/tensorrt", f"-I{_folder('triton')}/backends/nvidia/include"]
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-deprecated-declarations"]

    def run(**macros: str) -> Path:
        library = tmp_path_factory.mktemp("double") / "libdouble.so"
        defines = [f"-D{name}={value}" for name, value in macros.items()]
        subprocess.run(["g++", *flags, *includes, *defines, str(SOURCE), "-o", str(library)], check=True)
        return library

    return run


@pytest.fixture(scope="session")
def double(compile_double) -> Path:
    """The stand-in library that registers what our models ask for."""
    return compile_double()


@pytest.fixture
def build(tmp_path) -> Callable[..., EngineRecord]:
    """Build tmp_path/m.engine: build(onnx, precision="fp16")."""

    def run(model: Path, *, listener: Listener | None = None, **config) -> EngineRecord:
        return build_engine(model, tmp_path / "m.engine", EngineConfig(**config), listener)

    return run


@pytest.fixture
def fake_tensorrt(tmp_path, monkeypatch) -> Path:
    """Make `tensorrt` importable, with an A100 beside it; returns its file, to be edited before a build."""
    module = tmp_path / "site" / "tensorrt" / "__init__.py"
    module.parent.mkdir(parents=True)
    module.write_text(FAKE_TENSORRT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr("infsa_deploy.engine.build.find_gpu", lambda: A100)
    return module


@pytest.fixture
def parser_alias(tmp_path, monkeypatch) -> None:
    """Give the stand-in TensorRT, whose parser is TensorRT-RTX's, the library name that parser looks for."""
    (tmp_path / "alias").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(alias_folder(TENSORRT_RTX, tmp_path / "alias")))


@pytest.fixture
def left_over(tmp_path) -> Callable[[], list[str]]:
    """Names of engine files, finished or not, in tmp_path; the log is meant to stay."""
    return lambda: [path.name for path in tmp_path.iterdir() if "m.engine" in path.name and path.suffix != ".log"]
