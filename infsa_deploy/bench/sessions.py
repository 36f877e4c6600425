"""Opening what a contender runs, in the process that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.bench.contenders import Program
from infsa_deploy.config import ModelSource
from infsa_deploy.runtime import Session, TensorInfo
from infsa_deploy.runtime.protocol import Arrays, check_feeds

SEED = 0
OPENVINO_TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


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
    module, image = build(what.source, what.program)
    return EagerSession(module, image, what.dtype, what.device)


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

    return open_artefact(Path(str(what.path)))


def _openvino(what: Opening) -> Session:
    return OpenVinoSession(str(what.path), what.dtype, what.threads)


class OpenVinoSession:
    """An ONNX model on OpenVINO's CPU device, computing in fp32 or bf16: a peer to measure against."""

    runtime = "openvino"

    def __init__(self, path: str, dtype: str, threads: int) -> None:
        import openvino

        hints = {
            "INFERENCE_PRECISION_HINT": OPENVINO_TYPES[dtype],
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._model = openvino.Core().compile_model(path, "CPU", hints)
        self.inputs = tuple(_port(port) for port in self._model.inputs)
        self.outputs = tuple(_port(port) for port in self._model.outputs)
        self._request = self._model.create_infer_request()

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run once; arrays are checked against the model's inputs first."""
        check_feeds(self.inputs, feeds)
        found = self._request.infer(dict(feeds), share_inputs=True)
        return {info.name: np.array(found[port]) for info, port in zip(self.outputs, self._model.outputs, strict=True)}

    def close(self) -> None:
        """Free the compiled model."""
        del self._request, self._model


def _port(port: Any) -> TensorInfo:
    shape = tuple(axis.get_length() if axis.is_static else "free" for axis in port.partial_shape)
    return TensorInfo(port.any_name, shape, np.dtype(port.element_type.to_dtype()).name)


OPENERS: dict[str, Callable[[Opening], Session]] = {
    "eager": _eager,
    "compile": _compiled,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tensorrt": _tensorrt,
}
