"""Fixtures of the reference-model tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from infsa_models.vit import ViT, ViTConfig


@pytest.fixture
def golden() -> Path:
    """Folder of the outputs that the authors' package computed."""
    return Path(__file__).parent.parent / "golden"


@pytest.fixture
def tiny_config() -> ViTConfig:
    """A pure ViT small enough to build by the dozen, on a rectangular grid of 2 x 3 patches."""
    return ViTConfig(
        variant="pure",
        image_size=(8, 12),
        patch_size=4,
        in_channels=3,
        embed_dim=16,
        depth=2,
        num_heads=2,
        mlp_dim=24,
        num_classes=5,
    )


@pytest.fixture
def tiny_vit(tiny_config: ViTConfig) -> ViT:
    return ViT(tiny_config).eval()
