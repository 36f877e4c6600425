"""A tiny model with a source, so that a benchmark can find its reference."""

from __future__ import annotations

import pytest
import torch
from infsa_models.checkpoint import save_vit
from infsa_models.vit import ViT, ViTConfig

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Save a tiny model: checkpoint("linear"); its image is 16 x 16 in patches of 8."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def save(variant: str):
        config = ViTConfig(variant, (16, 16), 8, 3, embed_dim=24, depth=2, num_heads=3, mlp_dim=40, num_classes=5)
        torch.manual_seed(1)
        save_vit(ViT(config), folder / f"tiny_{variant}.safetensors")
        return folder / f"tiny_{variant}.safetensors"

    return save


@pytest.fixture(scope="session")
def artefact(checkpoint, tmp_path_factory):
    """The tiny linear model, exported."""
    path = tmp_path_factory.mktemp("artefacts") / "tiny_linear.onnx"
    export_reference(load_reference(ModelSource(weights=str(checkpoint("linear")))), path, ExportConfig())
    return path
