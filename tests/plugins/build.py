"""Builds the plugin library as its users do, by CMake, and the C++ harness and stand-in driver of the tests."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = Path(__file__).parent / "native"


@dataclass(frozen=True)
class Built:
    """A build folder, and where things are in it."""

    folder: Path

    @property
    def plugins(self) -> Path:
        return self.folder / "libinfsa_plugins.so"

    @property
    def harness(self) -> Path:
        return self.folder / "libharness.so"

    @property
    def driver(self) -> Path:
        return self.folder / "libcuda.so.1"

    @property
    def table(self) -> Path:
        return self.folder / "generated" / "kernels.json"


def build(built: Built, **settings: object) -> None:
    """Build everything in `built.folder`; `settings` are CMake's. RuntimeError with what a failing step said."""
    settings = {"Python3_EXECUTABLE": sys.executable} | settings
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-D{name}={value}" for name, value in settings.items()]
    built.folder.mkdir(parents=True, exist_ok=True)
    with (built.folder / "lock").open("w") as lock:  # whoever comes second finds everything made
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(built, generator, options)


def _build(built: Built, generator: list[str], options: list[str]) -> None:
    _run("cmake", "-S", ROOT / "plugins", "-B", built.folder, *generator, *options)
    _run("cmake", "--build", built.folder, "--parallel", "2")
    include = header_flags(built)
    compiler = ["g++", "-std=c++17", "-O1", "-g", "-shared", "-fPIC", "-Wall", "-Wno-deprecated-declarations", *include]
    _run(*compiler, NATIVE / "harness.cpp", "-o", built.harness, "-ldl")
    _run(*compiler, NATIVE / "stand_in_driver.cpp", "-o", built.driver, "-Wl,-soname,libcuda.so.1")


def header_flags(built: Built) -> list[str]:
    """What a compiler needs to find TensorRT's and CUDA's headers, after `build`."""
    cache = (built.folder / "CMakeCache.txt").read_text()
    headers = next(line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("INFSA_HEADERS:"))
    return [part for folder in headers.split(";") for part in ("-isystem", folder)]


def _run(*command: object) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stdout}\n{result.stderr}")
