"""Building the library once, and a process in which it runs on the stand-in driver.

Kernels run in Triton's interpreter, which has to be chosen before triton is first imported. The stand-in driver stays
the process's libcuda.so.1 for good, and must not be seen by tests that ask whether there is a GPU.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from tests.plugins.build import ROOT, Built, build


@pytest.fixture(scope="session")
def built() -> Built:
    """The plugin library for SM 80, with PTX for newer ones, the harness and the stand-in driver."""
    missing = [name for name in ("g++", "cmake") if not shutil.which(name)]
    missing += [name for name in ("triton",) if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"the plugin library needs {', '.join(missing)} to be built")
    found = Built(ROOT / "build" / "plugin_tests")  # kept between runs: the kernels take a minute to compile
    build(found, INFSA_PLUGINS_SM=80, INFSA_PLUGINS_PTX="ON")
    return found


@pytest.fixture(scope="session")
def worker(built: Built) -> Iterator[Callable[..., Any]]:
    """Call a function of tests.plugins.worker in the process that has the library and the stand-in driver."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:

        def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            return pool.submit(function, built, *arguments, **options).result()

        yield call
