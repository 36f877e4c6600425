"""Opening what a contender runs, in the process that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.bench.contenders import Program
from infsa_deploy.config import ModelSource, Trust
from infsa_deploy.errors import HostError
from infsa_deploy.runtime import Session, TensorInfo

SEED = 0


@dataclass(frozen=True)
class Opening:
    """What to open: a PyTorch program of `source`, or the model file at `path`."""

    source: ModelSource
    program: Program
    dtype: str
    path: str | None
    threads: int
    device: str


def random_image(info: TensorInfo, batch: int, channels: int, height: int, width: int) -> npt.NDArray[Any]:
    """The same standard normal noise for every contender, in the type that this one takes."""
    noise = np.random.default_rng(SEED).standard_normal((batch, channels, height, width), dtype=np.float32)
    return noise.astype(info.dtype)


def _eager(what: Opening) -> Session:
    import torch

    from infsa_deploy.bench.programs import build
    from infsa_deploy.runtime.eager import EagerSession

    torch.set_num_threads(what.threads)
    built = build(what.source, what.program)
    return EagerSession(built.module, built.image, what.dtype, what.device)


def _compiled(what: Opening) -> Session:
    import torch

    from infsa_deploy.runtime.eager import EagerSession

    session = _eager(what)
    assert isinstance(session, EagerSession)
    session.module = torch.compile(session.module, dynamic=False)  # type: ignore[assignment]
    session.runtime = "torch.compile"
    return session


def _onnxruntime(what: Opening) -> Session:
    from infsa_deploy.runtime.ort import OrtSession

    return OrtSession(str(what.path), what.device, what.threads)


def _tensorrt(what: Opening) -> Session:
    from infsa_deploy.runtime.artefact import open_artefact

    trust = Trust(host_code=True)  # built for this benchmark, or named by whoever asked for it
    return open_artefact(Path(str(what.path)), trust=trust)


def _openvino(what: Opening) -> Session:
    if what.device != "cpu":
        raise HostError(f"OpenVINO is not measured on {what.device}.", "its contenders run on the CPU.", "")
    from infsa_deploy.runtime.openvino import OpenVinoSession

    return OpenVinoSession(str(what.path), what.dtype, what.threads)


OPENERS: dict[str, Callable[[Opening], Session]] = {
    "eager": _eager,
    "compile": _compiled,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tensorrt": _tensorrt,
}
