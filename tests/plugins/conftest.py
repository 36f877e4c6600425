"""Building the library once, and a process in which it runs on the stand-in driver.

Kernels run in Triton's interpreter, which has to be chosen before triton is first imported. The stand-in driver stays
the process's libcuda.so.1 for good, and must not be seen by tests that ask whether there is a GPU.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = Path(__file__).parent / "native"
BUILD = ROOT / "build" / "plugin_tests"  # kept between runs: the kernels take a minute to compile


@dataclass(frozen=True)
class Built:
    """The plugin library for SM 80, with PTX for newer ones, the harness and the stand-in driver."""

    folder: Path
    plugins: Path
    harness: Path
    driver: Path
    table: Path


def _run(*command: object, **options: Any) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if result.returncode:
        pytest.fail(f"{command}\n{result.stdout}\n{result.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def built() -> Built:
    missing = [name for name in ("g++", "cmake") if not shutil.which(name)]
    missing += [name for name in ("triton",) if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"the plugin library needs {', '.join(missing)} to be built")
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    settings = ["-D", "INFSA_PLUGINS_SM=80", "-D", "INFSA_PLUGINS_PTX=ON", "-D", f"Python3_EXECUTABLE={sys.executable}"]
    _run("cmake", "-S", ROOT / "plugins", "-B", BUILD, *ninja, *settings)
    _run("cmake", "--build", BUILD, "--parallel", "2")
    cache = (BUILD / "CMakeCache.txt").read_text()
    headers = next(line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("INFSA_HEADERS:"))
    include = [part for folder in headers.split(";") for part in ("-isystem", folder)]
    found = Built(
        BUILD,
        BUILD / "libinfsa_plugins.so",
        BUILD / "libharness.so",
        BUILD / "libcuda.so.1",
        BUILD / "generated" / "kernels.json",
    )
    compiler = ["g++", "-std=c++17", "-O1", "-g", "-shared", "-fPIC", "-Wall", "-Wno-deprecated-declarations", *include]
    _run(*compiler, NATIVE / "harness.cpp", "-o", found.harness, "-ldl")
    _run(*compiler, NATIVE / "stand_in_driver.cpp", "-o", found.driver, "-Wl,-soname,libcuda.so.1")
    return found


@pytest.fixture(scope="session")
def worker(built: Built) -> Iterator[Callable[..., Any]]:
    """Call a function of tests.plugins.worker in the process that has the library and the stand-in driver."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:

        def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            return pool.submit(function, built, *arguments, **options).result()

        yield call
