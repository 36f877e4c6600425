"""OpenVINO execution of an exported model on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

from infsa_deploy.errors import ModelError
from infsa_deploy.files import check_model_file
from infsa_deploy.records.model import ModelMetadata, read_metadata
from infsa_deploy.runtime.cores import thread_count
from infsa_deploy.runtime.sessions.protocol import Arrays, TensorInfo, check_feeds

TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


class OpenVinoSession:
    """An ONNX model on OpenVINO's CPU device. Bodies of custom ops, which it does not read, are made plain nodes.

    Args:
        path: an ONNX file written by infsa-deploy.
        dtype: what the products are computed in, `fp32`, `bf16` or `fp16`; arrays stay in the file's types.
        threads: at most, and by default, one a core that this process may use.

    Raises:
        ModelError: the file is missing, empty, truncated, not ours, or has operators that OpenVINO lacks.
    """

    runtime = "openvino"
    max_batch: int | None = None
    on_host = True
    reentrant = False  # one request, whose buffers the next call fills again

    def __init__(self, path: str | Path, dtype: str = "fp32", threads: int | None = None) -> None:
        path = Path(path)
        check_model_file(path)
        content, metadata = _plain(path)
        self.metadata = _with_whole_affinity(metadata)
        try:
            self._model = compile_for_cpu(content, dtype, threads)
        except Exception as error:  # OpenVINO raises RuntimeError, and through it whatever its parts throw
            why = f"OpenVINO says: {_last_line(error)}"
            raise ModelError(f"{path} cannot be loaded by OpenVINO.", why, "run it with --provider cpu.") from error
        self._start()

    def _start(self) -> None:
        self.inputs = tuple(_port(port) for port in self._model.inputs)
        self.outputs = tuple(_port(port) for port in self._model.outputs)
        self._request = self._model.create_infer_request()

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run once; arrays are checked against the model's inputs first."""
        check_feeds(self.inputs, feeds)
        found = self._request.infer(dict(feeds), share_inputs=True)
        ports = zip(self.outputs, self._model.outputs, strict=True)
        return {info.name: np.array(found[port]).view(info.dtype) for info, port in ports}

    def fork(self) -> OpenVinoSession:
        """A request of its own over the same compiled model."""
        other = object.__new__(OpenVinoSession)
        other.metadata, other._model = self.metadata, self._model
        other._start()
        return other

    def close(self) -> None:
        """Free the compiled model."""
        del self._request, self._model


def compile_for_cpu(content: bytes, dtype: str = "fp32", threads: int | None = None) -> openvino.CompiledModel:
    """An ONNX file without functions compiled for the CPU; arguments as OpenVinoSession's."""
    hints = {
        "INFERENCE_PRECISION_HINT": TYPES[dtype],
        "INFERENCE_NUM_THREADS": thread_count(threads),
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    return core.compile_model(core.read_model(content), "CPU", hints)


def _plain(path: Path) -> tuple[bytes, ModelMetadata]:
    import onnx

    from infsa_deploy.engine.builder.bodies import expand_bodies

    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's own errors and onnx's share no base class
        why = f"it is no ONNX model, or a truncated one: {_last_line(error)}"
        raise ModelError(f"{path} cannot be loaded by OpenVINO.", why, "export it again.") from error
    metadata = read_metadata({entry.key: entry.value for entry in model.metadata_props}, path)
    return expand_bodies(model).SerializeToString(), metadata


def _with_whole_affinity(metadata: ModelMetadata) -> ModelMetadata:
    """Made plain, a body has no tiles: where ONNX Runtime walks N x N in tiles, this runtime holds it."""
    if metadata.variant != "pure" or metadata.form != "ops" or metadata.architecture.get("hops") != 1:
        return metadata
    pair = metadata.memory.bytes_per_token_pair + 4 * int(metadata.architecture["num_heads"])
    return replace(metadata, memory=replace(metadata.memory, bytes_per_token_pair=pair))


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _port(port: Any) -> TensorInfo:
    shape = tuple(axis.get_length() if axis.is_static else "free axis" for axis in port.partial_shape)
    return TensorInfo(port.any_name, shape, _type_name(port.element_type))


def _type_name(kind: openvino.Type) -> str:
    """As TensorInfo's; OpenVINO itself passes bf16 off as float16, of which only the width is right."""
    return "bfloat16" if kind == openvino.Type.bf16 else np.dtype(kind.to_dtype()).name
