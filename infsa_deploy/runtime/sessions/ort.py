"""ONNX Runtime execution of an exported model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime

from infsa_deploy.errors import DeployError, HostError, ModelError, UsageError
from infsa_deploy.files import check_model_file
from infsa_deploy.records.model import read_metadata
from infsa_deploy.runtime.cores import thread_count
from infsa_deploy.runtime.sessions.protocol import Arrays, TensorInfo, check_feeds

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(bool)": "bool"}
DTYPES |= {f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


class OrtSession:
    """An ONNX model on one execution provider, which is asserted: another one is never taken silently.

    Args:
        path: an ONNX file written by infsa-deploy.
        provider: `cpu` or `cuda`.
        threads: threads within an operator; at most, and by default, one a core that this process may use.

    Raises:
        ModelError: the file is missing, empty, truncated, not ONNX or not ours.
        HostError: the provider is not in this build, or does not start; or its arrays would be of a type that ONNX
            Runtime does not exchange with NumPy.
    """

    runtime = "onnxruntime"
    max_batch: int | None = None
    on_host: bool
    reentrant = True

    def __init__(self, path: str | Path, provider: str = "cpu", threads: int | None = None) -> None:
        path = Path(path)
        check_model_file(path)
        wanted = _available(provider)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count(threads)
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=[wanted])
        except Exception as error:  # ONNX Runtime's exceptions share no base class of their own
            raise _unloadable(path, wanted, str(error).splitlines()[0]) from error
        self._session.disable_fallback()
        if self._session.get_providers()[0] != wanted:
            raise HostError(
                f"ONNX Runtime did not start {wanted}.",
                f"it fell back to {', '.join(self._session.get_providers())}.",
                "run infsa-deploy doctor for what is missing.",
            )
        self.on_host = provider == "cpu"
        self.metadata = read_metadata(self._session.get_modelmeta().custom_metadata_map, path)
        self.inputs = tuple(_info(argument, path) for argument in self._session.get_inputs())
        self.outputs = tuple(_info(argument, path) for argument in self._session.get_outputs())

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run once; arrays are checked against the model's inputs first."""
        check_feeds(self.inputs, feeds)
        names = [info.name for info in self.outputs]
        return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))

    def fork(self) -> OrtSession:
        """This session: ONNX Runtime lets any number of threads call it."""
        return self

    def close(self) -> None:
        """Free the session's memory."""
        del self._session


def _unloadable(path: Path, provider: str, reason: str) -> DeployError:
    if "NOT_IMPLEMENTED" in reason:
        return HostError(
            f"ONNX Runtime cannot run {path} on its {provider}.",
            f"it lacks an operator in the model's type: {reason}",
            "export with --dtype fp32 or fp16, or build a TensorRT engine.",
        )
    if "external" in reason.lower() or f"{path.name}.data" in reason:
        return ModelError(
            f"{path} cannot be loaded by ONNX Runtime.",
            f"the file beside it that holds its weights is missing or cut off: {reason}",
            f"copy {path.name}.data along with the model, or export it again.",
        )
    why = f"it is no ONNX model, or a truncated one: {reason}"
    return ModelError(f"{path} cannot be loaded by ONNX Runtime.", why, "export it again.")


def _available(provider: str) -> str:
    if provider not in PROVIDERS:
        raise UsageError(f"provider {provider!r} is unknown.", "", f"choose one of {', '.join(PROVIDERS)}.")
    wanted, present = PROVIDERS[provider], onnxruntime.get_available_providers()
    if wanted not in present:
        raise HostError(
            f"this ONNX Runtime has no {wanted}.",
            f"it has {', '.join(present)}.",
            "pip uninstall onnxruntime; pip install 'infsa-deploy[gpu]'",
        )
    return wanted


def _info(argument: Any, path: Path) -> TensorInfo:
    if argument.type not in DTYPES:
        raise HostError(
            f"ONNX Runtime cannot run {path} from Python.",
            f"{argument.name!r} is a {argument.type}, which it does not exchange with NumPy.",
            "export without --low-precision-io, or build a TensorRT engine.",
        )
    return TensorInfo(argument.name, tuple(argument.shape), DTYPES[argument.type])
