"""Infinite Self-Attention Vision Transformers: export, prove, build and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infsa_deploy.version import __version__ as __version__

if TYPE_CHECKING:
    from infsa_deploy.export.pipeline import export_module as export  # noqa: F401


def __getattr__(name: str) -> Any:
    """Load `export` on first use, so that a host that only runs models needs no torch."""
    if name == "export":
        import importlib

        return importlib.import_module("infsa_deploy.export")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
