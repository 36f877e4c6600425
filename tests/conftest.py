"""Shared fixtures; how a run is selected, spread over workers and watched stands in tests/session."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported, which any import of torch may do

import numpy as np
import pytest

pytest_plugins = (
    "tests.session.workers",
    "tests.session.selection",
    "tests.session.leftovers",
    "tests.session.own_process",
    "tests.session.once",
)
DIGITS = ("linear", "pure")
GOLDEN = Path(__file__).parent / "golden"
EXPORT_OPTIONS = ("fold", "static_batch", "dynamic_size", "tile_tokens", "dtype", "int8", "keep_io", "attention_maps")


def _tiny(variant: str, **changes):
    import torch
    from infsa_models.vit import ViT, ViTConfig

    from infsa_deploy.config import ModelSource
    from infsa_deploy.export.sources import Reference
    from infsa_deploy.records.model import ImageSpec

    sizes = {"image_size": (16, 24), "patch_size": 8, "in_channels": 3, "embed_dim": 24, "depth": 2}
    sizes |= {"num_heads": 3, "mlp_dim": 40, "num_classes": 5}
    config = ViTConfig(variant=variant, **(sizes | changes))
    torch.manual_seed(1)
    module = ViT(config).eval()
    image = ImageSpec(config.in_channels, *config.image_size, (0.5,) * 3, (0.5,) * 3)
    classes = tuple("abcdefghij"[: config.num_classes])
    return Reference(module, f"tiny_{variant}", variant, config.to_dict(), image, classes, ModelSource())


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def digits(once) -> dict[str, Path]:
    """The exported digits models by variant; they take the same input and have the same classes."""
    return {variant: once(f"digits {variant}", _digits(variant)) / f"digits_{variant}.onnx" for variant in DIGITS}


def _digits(variant: str):
    def make(folder: Path) -> None:
        from infsa_deploy.config import ExportConfig, ModelSource
        from infsa_deploy.export.pipeline import export_reference
        from infsa_deploy.export.sources import load_reference

        reference = load_reference(ModelSource(model=f"digits_{variant}"))
        export_reference(reference, folder / f"digits_{variant}.onnx", ExportConfig())

    return make


@pytest.fixture(scope="session")
def shared_export(once):
    """Export a tiny model, once a run, to a file that no test may change: shared_export("pure", hops=3, dtype="fp16").

    Keywords are fields of ViTConfig and of ExportConfig.
    """

    def exported(variant: str, **fields) -> Path:
        config = {name: fields.pop(name) for name in EXPORT_OPTIONS if name in fields}

        def make(folder: Path) -> None:
            from infsa_deploy.config import ExportConfig
            from infsa_deploy.export.pipeline import export_reference

            export_reference(_tiny(variant, **fields), folder / f"tiny_{variant}.onnx", ExportConfig(**config))

        return once(repr((variant, sorted(fields.items()), sorted(config.items()))), make) / f"tiny_{variant}.onnx"

    return exported


@pytest.fixture
def exported(shared_export, tmp_path):
    """Copy such an export to tmp_path/VARIANT.onnx, to be changed at will: exported("linear", depth=3)."""

    def copied(variant: str, **fields) -> Path:
        return Path(shutil.copy(shared_export(variant, **fields), tmp_path / f"{variant}.onnx"))

    return copied


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

    def run(reference, **config):
        import onnx_ir as ir

        from infsa_deploy.config import ExportConfig
        from infsa_deploy.export.pipeline import export_reference

        path = tmp_path / f"{reference.name}.onnx"
        export_reference(reference, path, ExportConfig(**config))
        return path, ir.load(path)

    return run
