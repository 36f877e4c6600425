"""GPU plugins of ONNX domain `infsa` for TensorRT: Triton kernels inside one C++ library."""

from __future__ import annotations

from pathlib import Path


def library_path() -> Path:
    """Return where the plugin library of this installation lies, present or not.

    The file is missing when the package was installed with the library switched off, or is read from a source tree.
    """
    return Path(__file__).parent / "lib" / "libinfsa_plugins.so"
