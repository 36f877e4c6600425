"""Reading a parsed TensorRT network: its inputs, the types its products multiply in, its plugin layers, its memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infsa_deploy.config import Shape
from infsa_deploy.engine.builder.memory import Step, activation_bytes

TYPE_NAMES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32", "INT64": "int64",
              "INT8": "int8", "UINT8": "uint8", "BOOL": "bool", "FP8": "float8_e4m3fn"}  # fmt: skip
PRECISION_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}
ITEM_BYTES = {"FLOAT": 4, "HALF": 2, "BF16": 2, "INT32": 4, "INT64": 8, "INT4": 0.5, "FP4": 0.5}
PRODUCTS = frozenset({"CONVOLUTION", "MATRIX_MULTIPLY"})
CARRIERS = frozenset({"CAST", "IDENTITY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE"})
QUANTIZERS = frozenset({"QUANTIZE", "DEQUANTIZE"})


@dataclass(frozen=True)
class NetworkFacts:
    """What a parsed network says of itself.

    Attributes:
        inputs, outputs: type and shape by name; -1 where an axis is free.
        products: (layer name, type it multiplies in) of each product with weights; `int8` behind dequantized operands.
        layers: layers that compute on real numbers, by type.
        plugins: plugin layers by `namespace::op::version`.
        activation_bytes: see memory.activation_bytes, at the largest shapes.
    """

    inputs: dict[str, tuple[str, Shape]]
    outputs: dict[str, tuple[str, Shape]]
    products: tuple[tuple[str, str], ...]
    layers: Counter[str]
    plugins: Counter[str]
    activation_bytes: int | None


def read_network(trt: Any, network: Any, largest: Mapping[str, Shape]) -> NetworkFacts:
    """Read the network; `largest` are the shapes that memory is predicted at.

    Args:
        trt: the flavour's Python module.
        network: its INetworkDefinition, parsed.
    """
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    return NetworkFacts(
        inputs={t.name: (type_name(t.dtype), tuple(t.shape)) for t in network_inputs(network)},
        outputs={t.name: (type_name(t.dtype), tuple(t.shape)) for t in _outputs(network)},
        products=tuple(_products(layers)),
        layers=_layer_types(layers),
        plugins=Counter(_plugin(trt, layer) for layer in layers if layer.type.name == "PLUGIN_V3"),
        activation_bytes=_predict(network, layers, largest),
    )


def network_inputs(network: Any) -> list[Any]:
    """The network's input tensors."""
    return [network.get_input(index) for index in range(network.num_inputs)]


def type_name(dtype: Any) -> str:
    """NumPy's name of a TensorRT type, or `bfloat16`."""
    name = str(dtype.name)
    return TYPE_NAMES.get(name, name.lower())


def _outputs(network: Any) -> list[Any]:
    return [network.get_output(index) for index in range(network.num_outputs)]


def _layer_inputs(layer: Any) -> Iterator[Any]:
    tensors = (layer.get_input(index) for index in range(layer.num_inputs))
    return (tensor for tensor in tensors if tensor is not None)


def _layer_outputs(layer: Any) -> list[Any]:
    return [layer.get_output(index) for index in range(layer.num_outputs)]


def _precision(tensor: Any) -> str:
    name = type_name(tensor.dtype)
    return PRECISION_NAMES.get(name, name)


def _products(layers: list[Any]) -> Iterator[tuple[str, str]]:
    makers = {output.name: layer for layer in layers for output in _layer_outputs(layer)}
    for layer in layers:
        if layer.type.name not in PRODUCTS:
            continue
        operands = list(_layer_inputs(layer))[:2]
        weighted = len(operands) < 2 or any(
            _origin(tensor, makers, CARRIERS | QUANTIZERS) == "CONSTANT" for tensor in operands
        )
        if weighted:
            quantized = all(_origin(tensor, makers, CARRIERS) == "DEQUANTIZE" for tensor in operands)
            yield layer.name, "int8" if quantized else _precision(layer.get_output(0))


def _origin(tensor: Any, makers: Mapping[str, Any], carriers: frozenset[str]) -> str:
    """The kind of layer that `tensor` comes from, past those that only carry it."""
    while tensor.name in makers:
        maker = makers[tensor.name]
        kind = str(maker.type.name)
        if kind not in carriers:
            return kind
        tensor = maker.get_input(0)
    return "INPUT"


def _layer_types(layers: list[Any]) -> Counter[str]:
    """Layers by the type of their first output, those on whole numbers and constants left out."""
    kinds: Counter[str] = Counter()
    for layer in layers:
        if layer.type.name != "CONSTANT" and layer.num_outputs:
            kinds[_precision(layer.get_output(0))] += 1
    return Counter({kind: count for kind, count in kinds.items() if kind in ("int8", *PRECISION_NAMES.values())})


def _plugin(trt: Any, layer: Any) -> str:
    layer.__class__ = trt.IPluginV3Layer
    core = layer.plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
    return f"{core.plugin_namespace}::{core.plugin_name}::{core.plugin_version}"


def _predict(network: Any, layers: list[Any], largest: Mapping[str, Shape]) -> int | None:
    free = {tensor.name: tuple(tensor.shape) for tensor in network_inputs(network)}
    try:
        for tensor in network_inputs(network):
            tensor.shape = largest[tensor.name]
        steps = [
            Step(layer.type.name, tuple(t.name for t in _layer_inputs(layer)), tuple(t.name for t in outputs))
            for layer in layers
            if (outputs := _layer_outputs(layer))
        ]
        tensors = {t.name: t for layer in layers for t in (*_layer_inputs(layer), *_layer_outputs(layer))}
        sizes = {name: _bytes(tensor) for name, tensor in tensors.items()}
    finally:
        for tensor in network_inputs(network):
            tensor.shape = free[tensor.name]
    if any(size < 0 for size in sizes.values()):
        return None
    return activation_bytes(steps, sizes, [tensor.name for tensor in _outputs(network)])


def _bytes(tensor: Any) -> int:
    """Size of a tensor in bytes; -1 where an axis is unknown."""
    shape = tuple(tensor.shape)
    return -1 if -1 in shape else math.ceil(math.prod(shape) * ITEM_BYTES.get(tensor.dtype.name, 1))
