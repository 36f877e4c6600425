"""Opening whatever was exported or built with the runtime that runs it."""

from __future__ import annotations

from pathlib import Path

from infsa_deploy.config import Trust
from infsa_deploy.engine.sidecar import read_sidecar, sidecar_path
from infsa_deploy.errors import ModelError
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.runtime.sessions.protocol import ModelSession

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")


def is_engine(path: Path) -> bool:
    """True for an engine, by its sidecar or its suffix."""
    return path.suffix in ENGINE_SUFFIXES or sidecar_path(path).is_file()


def read_artefact_metadata(path: Path) -> ModelMetadata:
    """Read what an ONNX file or an engine says of its model, without a runtime; ModelError where it says nothing."""
    from infsa_deploy.graph.store import load_model

    metadata = read_sidecar(path).metadata if is_engine(path) else load_model(path)[1]
    if metadata is None:
        raise ModelError(f"{path} has no reference.", "its ONNX file is not one of ours.", "export the model again.")
    return metadata


def open_artefact(
    path: Path,
    provider: str = "cpu",
    threads: int | None = None,
    plugins: Path | None = None,
    trust: Trust | None = None,
) -> ModelSession:
    """Load an engine in TensorRT on the GPU with the library `plugins`, an ONNX file by `provider`.

    Args:
        provider: `cpu` or `cuda` of ONNX Runtime, or `openvino`.
        trust: whether an engine may run code on the processor; by default it may not.

    Raises: as TrtSession, OrtSession and OpenVinoSession.
    """
    if is_engine(path):
        from infsa_deploy.runtime.sessions.trt import TrtSession

        return TrtSession(path, library=plugins, trust=trust)
    if provider == "openvino":
        from infsa_deploy.runtime.sessions.openvino import OpenVinoSession

        return OpenVinoSession(path, threads=threads)
    from infsa_deploy.runtime.sessions.ort import OrtSession

    return OrtSession(path, provider, threads)
