"""Exports that the tests of validation share; what changes a file changes a copy."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
from infsa_models.checkpoint import save_vit

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from tests.conftest import _tiny


@pytest.fixture(scope="session")
def exported_once(tmp_path_factory):
    """exported_once("linear", fold=False) gives an export of the tiny model and its checkpoint, made once."""
    folder = tmp_path_factory.mktemp("validated")

    @cache
    def make(variant: str, **config) -> tuple[Path, Path]:
        weights = folder / f"{variant}.safetensors"
        if not weights.exists():
            save_vit(_tiny(variant).module, weights)
        path = folder / f"{'_'.join(map(str, (variant, *config.values())))}.onnx"
        export_reference(load_reference(ModelSource(weights=str(weights))), path, ExportConfig(**config))
        return path, weights

    return make


@pytest.fixture
def copied(exported_once, tmp_path):
    """The same in a folder of the test's own: the export, and the checkpoint that it names is the shared one."""

    def copy(variant: str, name: str = "m.onnx", **config) -> Path:
        return Path(shutil.copy(exported_once(variant, **config)[0], tmp_path / name))

    return copy
