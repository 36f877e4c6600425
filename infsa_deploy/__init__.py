"""Infinite Self-Attention Vision Transformers: export, prove, build and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infsa_deploy.errors import DeployError as DeployError
from infsa_deploy.version import __version__ as __version__

if TYPE_CHECKING:
    from infsa_deploy.export.pipeline import export_module as export  # noqa: F401
    from infsa_deploy.runtime.model import Model as Model
    from infsa_deploy.runtime.model import load as load

LAZY = {"export": "infsa_deploy.export", "load": "infsa_deploy.runtime.model", "Model": "infsa_deploy.runtime.model"}


def __getattr__(name: str) -> Any:
    """Load `export`, `load` and `Model` on first use: a host that only runs models needs no torch."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(LAZY[name])
    return module if name == "export" else getattr(module, name)
