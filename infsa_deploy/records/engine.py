"""What is recorded of engines: how one was asked for, built and proven. Units are part of the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infsa_deploy.records.model import ModelMetadata


@dataclass(frozen=True)
class Gpu:
    """A GPU: its name, architecture (`sm80`) and memory."""

    name: str
    sm: str
    memory_bytes: int


@dataclass(frozen=True)
class TensorProfile:
    """An engine's input or output and, for an input, the shapes the engine takes.

    Attributes:
        dtype: NumPy's name of the type, or `bfloat16`.
        shape: one size an axis, -1 where it is free.
        minimum, optimum, maximum: smallest, best-served and largest shape; None for an output.
        lowered: why the largest batch is below the default of 32, where nobody asked for that.
    """

    dtype: str
    shape: tuple[int, ...]
    minimum: tuple[int, ...] | None = None
    optimum: tuple[int, ...] | None = None
    maximum: tuple[int, ...] | None = None
    lowered: str | None = None


@dataclass(frozen=True)
class PrecisionFound:
    """The types of an engine's layers.

    Attributes:
        asked: `fp16`, `bf16`, `int8`, or None for the model's own.
        products: matrix products and convolutions with weights, by the type they multiply in.
        layers_percent: per cent of layers that compute, by type.
        kept_fp32: why, by node name, for each node that was left in fp32.
    """

    asked: str | None
    products: Mapping[str, int]
    layers_percent: Mapping[str, float]
    kept_fp32: Mapping[str, str]


@dataclass(frozen=True)
class PluginUse:
    """How an engine runs the model's custom ops.

    Attributes:
        mode: `plugins`, `bodies` (built from the function bodies), or `none` (no custom ops in the model).
        library: file name of the plugin library.
        sha256: its hash.
        embedded: whether the plan holds the library.
        layers: plugin layers by `namespace::op::version`.
        proof: what they were counted in: `engine`, or `network and plan` where an engine cannot be opened.
        bodies: why a custom node is built from its function body although there are plugins, by node name.
    """

    mode: str
    library: str | None
    sha256: str | None
    embedded: bool
    layers: Mapping[str, int]
    proof: str | None
    bodies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineForecast:
    """What `--dry-run` finds: everything about an engine but the engine.

    Attributes:
        activation_bytes_predicted: memory for activations at the largest shapes, from the graph; None where a shape
            cannot be inferred.
        weights_bytes: size of the weights in the graph.
    """

    model: str
    flavour: str
    flavour_version: str
    targets: tuple[str, ...]
    inputs: Mapping[str, TensorProfile]
    outputs: Mapping[str, TensorProfile]
    precision: PrecisionFound
    plugins: PluginUse
    activation_bytes_predicted: int | None
    weights_bytes: int


@dataclass(frozen=True)
class EngineRecord:
    """The sidecar of an engine: what it is, what it was built from, and where it runs.

    Attributes:
        targets: GPU architectures it was built for.
        built_on: the GPU of the machine that built it, or None.
        options: builder options other than the defaults.
        timing_cache_sha256: hash of the timing cache as written back, or None.
        activation_bytes_predicted: see EngineForecast.
        activation_bytes: what the builder reported, or None where it did not.
        metadata: the model's own, or None for an ONNX file from elsewhere.
    """

    tool_version: str
    flavour: str
    flavour_version: str
    targets: tuple[str, ...]
    built_on: Gpu | None
    engine_sha256: str
    engine_bytes: int
    onnx: str
    onnx_sha256: str
    inputs: Mapping[str, TensorProfile]
    outputs: Mapping[str, TensorProfile]
    precision: PrecisionFound
    plugins: PluginUse
    options: Mapping[str, Any]
    timing_cache_sha256: str | None
    build_s: float
    activation_bytes_predicted: int | None
    activation_bytes: int | None
    metadata: ModelMetadata | None


@dataclass(frozen=True)
class EngineInspection:
    """An engine's sidecar and, where a GPU can open the engine, what TensorRT says of it.

    Attributes:
        layers: number of layers by kind, and `unopened` the reason where there is none.
        types: number of layers by the type of their first output, in TensorRT's words.
        device_memory_bytes: memory a context needs on the device.
    """

    engine: EngineRecord
    layers: Mapping[str, int] | None
    types: Mapping[str, int] | None
    device_memory_bytes: int | None
    unopened: str | None
