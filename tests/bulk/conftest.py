"""Pictures to put through a model in bulk."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def encoded(rng) -> list[bytes]:
    """Seven PNG files, no two of one size."""
    files = []
    for n in range(7):
        buffer = io.BytesIO()
        pixels = rng.integers(0, 256, (20 + 9 * n, 70 - 8 * n, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "png")
        files.append(buffer.getvalue())
    return files


@pytest.fixture
def images(tmp_path, encoded) -> Path:
    """A folder of them, one in a folder of its own."""
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    for n, content in enumerate(encoded):
        (folder / ("deep" if n == 3 else ".") / f"{n}.png").write_bytes(content)
    return folder


@pytest.fixture
def model(digits, tmp_path) -> Path:
    """A copy that a test may harm."""
    return Path(shutil.copy(digits["linear"], tmp_path / "model.onnx"))
