"""The digits models as files, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> dict[str, Path]:
    """The exported digits models by variant; they take the same input and have the same classes."""
    folder = tmp_path_factory.mktemp("digits")
    paths = {variant: folder / f"digits_{variant}.onnx" for variant in ("linear", "pure")}
    for variant, path in paths.items():
        export_reference(load_reference(ModelSource(model=f"digits_{variant}")), path, ExportConfig())
    return paths
