"""What runs in a process with TensorRT-RTX: building engines ahead of time for a GPU that is not there."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


@dataclass
class Engine:
    """A network as parsed, and the size of the engine built from it."""

    layers: list[str]
    outputs: list[tuple[int, ...]]
    types: list[str]
    bytes: int
    log: str


@cache
def _load(folder: Path) -> Any:
    """Import TensorRT-RTX so that its ONNX parser finds the runtime.

    The parser opens `libtensorrt_rtx.so`; the wheel ships `libtensorrt_rtx.so.1` alone. A library of that SONAME which
    links the real one answers for it.
    """
    libs = Path(next(iter(importlib.util.find_spec("tensorrt_rtx_libs").submodule_search_locations)))
    alias = folder / "libtensorrt_rtx_alias.so"
    source = "int infsa_rtx_alias(void) { return 0; }"
    link = ["-Wl,-soname,libtensorrt_rtx.so", "-Wl,--no-as-needed", f"-L{libs}", "-l:libtensorrt_rtx.so.1"]
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(alias), *link, f"-Wl,-rpath,{libs}"]
    subprocess.run(command, input=source, text=True, check=True)
    import tensorrt_rtx

    ctypes.CDLL(str(alias), mode=ctypes.RTLD_GLOBAL)
    return tensorrt_rtx


@contextlib.contextmanager
def _stderr_to(messages: list[str]) -> Iterator[None]:
    """What native code writes to stderr meanwhile, appended to `messages`."""
    with tempfile.TemporaryFile() as captured:
        kept = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            captured.seek(0)
            messages.append(captured.read().decode())


def build(folder: Path, model: bytes, plugins: Path | None, profile: Shapes, sm: str = "SM80") -> Engine:
    """Parse a model and build it for an SM, with the plugin library inside the engine when one is given."""
    trt = _load(folder)
    messages: list[str] = []

    class Log(trt.ILogger):
        def log(self, severity: Any, text: str) -> None:
            if severity <= trt.ILogger.WARNING:
                messages.append(text)

    logger = Log()
    builder = trt.Builder(logger)
    registry = builder.get_plugin_registry()
    handle = registry.load_library(str(plugins)) if plugins else None
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        raise RuntimeError(f"{[parser.get_error(i).desc() for i in range(parser.num_errors)]} {messages}")
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, sm), 0)
    if plugins:
        config.plugins_to_serialize = [str(plugins)]
    if profile:
        optimization = builder.create_optimization_profile()
        for name, shapes in profile.items():
            optimization.set_shape(name, *shapes)
        config.add_optimization_profile(optimization)
    layers = [network.get_layer(i).type.name for i in range(network.num_layers)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    shapes, types = [tuple(o.shape) for o in outputs], [o.dtype.name for o in outputs]
    with _stderr_to(messages):
        plan = builder.build_serialized_network(network, config)
    size = plan.nbytes if plan else 0
    del plan, outputs, config, parser, network, builder
    if handle is not None:
        registry.deregister_library(handle)
    return Engine(layers, shapes, types, size, "\n".join(messages))
