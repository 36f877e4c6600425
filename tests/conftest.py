"""Shared fixtures, and the reason each GPU test gives when there is no GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_no_gpu()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs a GPU: this machine has no NVIDIA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    return f"needs a GPU: cuInit fails with CUDA error {status}" if status else ""


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
