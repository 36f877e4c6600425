"""Shared fixtures, and the reason each GPU test gives when there is no GPU."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported, which any import of torch may do

import numpy as np
import onnx_ir as ir
import pytest
import torch
from infsa_models.vit import ViT, ViTConfig

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import Reference, load_reference
from infsa_deploy.records import ImageSpec

GOLDEN = Path(__file__).parent / "golden"


def _tiny(variant: str, **changes) -> Reference:
    sizes = {"image_size": (16, 24), "patch_size": 8, "in_channels": 3, "embed_dim": 24, "depth": 2}
    sizes |= {"num_heads": 3, "mlp_dim": 40, "num_classes": 5}
    config = ViTConfig(variant=variant, **(sizes | changes))
    torch.manual_seed(1)
    module = ViT(config).eval()
    image = ImageSpec(config.in_channels, *config.image_size, (0.5,) * 3, (0.5,) * 3)
    classes = tuple("abcdefghij"[: config.num_classes])
    return Reference(module, f"tiny_{variant}", variant, config.to_dict(), image, classes, ModelSource())


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


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> dict[str, Path]:
    """The exported digits models by variant; they take the same input and have the same classes."""
    folder = tmp_path_factory.mktemp("digits")
    paths = {variant: folder / f"digits_{variant}.onnx" for variant in ("linear", "pure")}
    for variant, path in paths.items():
        export_reference(load_reference(ModelSource(model=f"digits_{variant}")), path, ExportConfig())
    return paths


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def tiny():
    """Build a tiny reference model: tiny("linear", depth=3)."""
    return _tiny


@pytest.fixture
def export(tmp_path):
    """Export a reference and return the file's path and its graph."""

    def run(reference: Reference, **config) -> tuple[Path, ir.Model]:
        path = tmp_path / f"{reference.name}.onnx"
        export_reference(reference, path, ExportConfig(**config))
        return path, ir.load(path)

    return run
