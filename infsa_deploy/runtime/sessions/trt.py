"""TensorRT and TensorRT-RTX execution of an engine that build-engine wrote."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.config import Trust
from infsa_deploy.engine import plugin_library, sidecar
from infsa_deploy.engine.builder.listeners import Messages, make_logger
from infsa_deploy.engine.driver import find_gpu, require_gpu
from infsa_deploy.engine.flavor import FLAVORS
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.records.engine import EngineInspection, EngineRecord, TensorProfile
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.runtime.sessions.cuda import Cuda, Graph, MirroredBuffer, Stream
from infsa_deploy.runtime.sessions.protocol import Arrays, TensorInfo, check_feeds, check_names

if TYPE_CHECKING:
    import torch

Shapes = tuple[tuple[int, ...], ...]


class Engine:
    """A deserialised engine, which any number of sessions may run at once.

    Args:
        path: an engine with its sidecar beside it. The sidecar is checked before the plan is touched.
        library: the plugin library, for an engine that does not hold it; default: see sidecar.find_plugins.
        trust: whether it may run code on the processor.

    Raises:
        ModelError: the engine or its sidecar is missing, damaged, not ours or not trusted.
        UsageError: it runs code on the processor, and may not.
        HostError: no GPU, another GPU, another version or plugin library than the engine was built with.
    """

    def __init__(self, path: str | Path, library: Path | None = None, trust: Trust | None = None) -> None:
        path, trust = Path(path), trust or Trust()
        self.record = sidecar.read_sidecar(path)
        plan = sidecar.read_plan(path, self.record)
        host_code = sidecar.runs_host_code(self.record) or plugin_library.holds_host_code(plan)
        sidecar.check_trust(path, self.record.engine_sha256, trust, host_code=host_code)
        gpu = require_gpu(f"running {path}")
        self.trt = _module(self.record)
        sidecar.check_host(path, self.record, gpu, self.trt.__version__)
        self.cuda = Cuda()
        self._messages = Messages(lambda kind, text: None, verbose=False)
        self._runtime = self.trt.Runtime(make_logger(self.trt, self._messages))
        self._runtime.engine_host_code_allowed = host_code  # which the caller agreed to
        if self.record.plugins.library and not self.record.plugins.embedded:
            self._load_library(sidecar.find_plugins(path, self.record, library, trust))
        self.engine = self._runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            reason = self._messages.errors[-1] if self._messages.errors else "it gives no reason."
            raise HostError(f"{self.record.flavour} cannot load {path}.", reason, sidecar.BUILD_AGAIN)

    def _load_library(self, library: Path) -> None:
        if self._runtime.get_plugin_registry().load_library(str(library)) is None:
            raise HostError(f"{library} does not load.", "see the lines above.", f"ldd {library}")

    def failure(self, what: str) -> HostError:
        """The error for a call that TensorRT refused, with the last of its messages."""
        reason = self._messages.errors[-1] if self._messages.errors else "TensorRT gives no reason."
        return HostError(what, reason, "run infsa-deploy doctor.")


class TrtSession:
    """One execution context of an engine, with a stream and buffers of its own.

    Args:
        engine: an engine's path, or an Engine that other sessions share.
        library, trust: see Engine.
        cuda_graph: capture the work of each set of input shapes once and launch it as a whole afterwards.

    Attributes:
        metadata: what the exported model says of itself.
        max_batch: largest first axis of the first input.

    Raises: as Engine; ModelError for an engine whose ONNX file was not written by infsa-deploy.
    """

    reentrant = False

    def __init__(
        self,
        engine: str | Path | Engine,
        *,
        library: Path | None = None,
        trust: Trust | None = None,
        cuda_graph: bool = False,
    ) -> None:
        self.engine = engine if isinstance(engine, Engine) else Engine(engine, library, trust)
        record = self.engine.record
        self.runtime = record.flavour
        self.metadata = _metadata(record)
        self.inputs = tuple(_info(name, profile) for name, profile in record.inputs.items())
        self.outputs = tuple(_info(name, profile) for name, profile in record.outputs.items())
        first = next(iter(record.inputs.values()))
        self.on_host = False
        self.max_batch: int | None = first.maximum[0] if first.maximum else None
        self.engine.cuda.make_current()  # a fork is made in the thread that will run it
        self._context = self.engine.engine.create_execution_context()
        if self._context is None:
            raise self.engine.failure("the engine cannot be run.")
        self._stream = Stream(self.engine.cuda)
        self._buffers: dict[str, MirroredBuffer] = {}
        self._graphs: dict[Shapes, Graph] | None = {} if cuda_graph else None

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run once on arrays; they are copied through pinned memory, and the outputs are copies of their own."""
        check_feeds(self.inputs, feeds)
        check_profile(self.engine.record, {name: array.shape for name, array in feeds.items()})
        self.engine.cuda.make_current()
        for name, array in feeds.items():
            self._context.set_input_shape(name, array.shape)
            self._buffer(name, array.nbytes).view(array.shape, array.dtype)[...] = array
        shapes = {info.name: tuple(self._context.get_tensor_shape(info.name)) for info in self.outputs}
        sizes = {info.name: _bytes(shapes[info.name], info.dtype) for info in self.outputs}
        for name, size in sizes.items():
            self._buffer(name, size)
        for name, buffer in self._buffers.items():
            self._context.set_tensor_address(name, buffer.address)
        for name, array in feeds.items():
            self._buffers[name].to_device(array.nbytes, self._stream)
        self._enqueue(tuple(feeds[info.name].shape for info in self.inputs))
        for name, size in sizes.items():
            self._buffers[name].to_host(size, self._stream)
        self._stream.synchronize()
        return {i.name: self._buffers[i.name].view(shapes[i.name], i.dtype).copy() for i in self.outputs}

    def run_tensors(self, feeds: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run on CUDA tensors in place, without copies, on PyTorch's current stream; the call does not wait.

        Raises:
            UsageError: a tensor is not a contiguous CUDA tensor of the input's type, or is outside the profile.
        """
        import torch

        check_names(self.inputs, feeds)
        check_profile(self.engine.record, {name: tuple(tensor.shape) for name, tensor in feeds.items()})
        for info in self.inputs:
            _check_tensor(info, feeds[info.name])
            self._context.set_input_shape(info.name, tuple(feeds[info.name].shape))
            self._context.set_tensor_address(info.name, feeds[info.name].data_ptr())
        outputs = {}
        for info in self.outputs:
            shape = tuple(self._context.get_tensor_shape(info.name))
            outputs[info.name] = torch.empty(shape, dtype=getattr(torch, info.dtype), device="cuda")
            self._context.set_tensor_address(info.name, outputs[info.name].data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise self.engine.failure("the engine did not run.")
        return outputs

    def fork(self) -> TrtSession:
        """Another session over the same engine, to run beside this one in another thread."""
        return TrtSession(self.engine, cuda_graph=self._graphs is not None)

    def close(self) -> None:
        """Free the context, the stream and the buffers; the engine lives while another session has it."""
        self.engine.cuda.make_current()
        for graph in (self._graphs or {}).values():
            graph.close()
        for buffer in self._buffers.values():
            buffer.close()
        self._stream.close()
        self._buffers.clear()
        del self._context, self.engine

    def _buffer(self, name: str, size: int) -> MirroredBuffer:
        """The tensor's buffer, made anew where it is too small; graphs hold addresses and are dropped with it."""
        known = self._buffers.get(name)
        if known is None or known.size < size:
            if known is not None:
                del self._buffers[name]  # first: there may be no memory for a larger one
                known.close()
            if self._graphs:
                for graph in self._graphs.values():
                    graph.close()
                self._graphs.clear()
            self._buffers[name] = MirroredBuffer(self.engine.cuda, size)
        return self._buffers[name]

    def _enqueue(self, shapes: Shapes) -> None:
        if self._graphs is not None and shapes in self._graphs:
            self._graphs[shapes].launch(self._stream)
            return
        if not self._context.execute_async_v3(self._stream.handle):
            raise self.engine.failure("the engine did not run.")
        if self._graphs is None:
            return
        self._stream.synchronize()  # the first run of a shape may allocate, which a capture must not
        self._stream.begin_capture()
        captured = self._context.execute_async_v3(self._stream.handle)
        graph = self._stream.end_capture()
        if not captured:
            raise self.engine.failure("the engine cannot be captured as a CUDA graph.")
        self._graphs[shapes] = graph


def inspect_engine(path: Path) -> EngineInspection:
    """The engine's sidecar and, where it can be opened, its layers, their types and its memory.

    Raises: ModelError as Engine; what the machine lacks is told in the record.
    """
    record = sidecar.read_sidecar(path)
    sidecar.check_file(path, record)
    if find_gpu() is None:
        return EngineInspection(record, None, None, None, "there is no GPU here to open it on.")
    try:
        opened = Engine(path)
    except (HostError, UsageError) as error:
        return EngineInspection(record, None, None, None, error.what)
    text = opened.engine.create_engine_inspector().get_engine_information(opened.trt.LayerInformationFormat.JSON)
    layers = [layer if isinstance(layer, dict) else {} for layer in json.loads(text)["Layers"]]
    kinds = Counter(str(layer.get("LayerType", "layer")) for layer in layers)
    types = Counter(str(layer["Outputs"][0].get("Format/Datatype")) for layer in layers if layer.get("Outputs"))
    return EngineInspection(record, dict(kinds), dict(types), int(opened.engine.device_memory_size_v2), None)


def check_profile(record: EngineRecord, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError for a shape outside those the engine was built for."""
    for name, shape in shapes.items():
        profile = record.inputs[name]
        low, high = profile.minimum or profile.shape, profile.maximum or profile.shape
        if len(shape) != len(low) or not all(a <= size <= b for a, size, b in zip(low, shape, high, strict=False)):
            spelled = ["x".join(map(str, sizes)) for sizes in (shape, low, high)]
            raise UsageError(
                f"input {name!r} of shape {spelled[0]} is outside the engine's profile.",
                f"it was built for {spelled[1]} to {spelled[2]}.",
                f"build it again with --max-shapes or --min-shapes {name}:{spelled[0]}",
            )


def _module(record: EngineRecord) -> Any:
    flavor = next((flavor for flavor in FLAVORS if flavor.name == record.flavour), None)
    if flavor is None:
        raise ModelError(f"the sidecar names an unknown flavour, {record.flavour}.", "", sidecar.BUILD_AGAIN)
    if not flavor.installed:
        raise HostError(f"{flavor.title} is not installed.", f"Python finds no {flavor.module}.", flavor.install)
    return importlib.import_module(flavor.module)


def _metadata(record: EngineRecord) -> ModelMetadata:
    if record.metadata is None:
        raise ModelError(
            f"the engine was built from {record.onnx}, which infsa-deploy did not write.",
            "nothing is known of its classes and its reference model.",
            "export the PyTorch model with infsa-deploy export.",
        )
    return record.metadata


def _info(name: str, profile: TensorProfile) -> TensorInfo:
    axes = tuple(f"axis {index}" if size < 0 else size for index, size in enumerate(profile.shape))
    return TensorInfo(name, axes, profile.dtype)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _check_tensor(info: TensorInfo, tensor: torch.Tensor) -> None:
    kind = str(tensor.dtype).removeprefix("torch.")
    if not tensor.is_cuda or not tensor.is_contiguous() or kind != info.dtype:
        raise UsageError(
            f"input {info.name!r} is a {kind} tensor on {tensor.device}.",
            f"the engine reads contiguous {info.dtype} tensors on the GPU, where they lie.",
            f"pass tensor.to('cuda', torch.{info.dtype}).contiguous()",
        )
