"""Int8 matrix products, by ONNX Runtime's quantisers.

dynamic: weights int8 per output channel, activations uint8 with a range taken at run time: for CPUs.
static: symmetric int8 Q/DQ pairs with ranges from calibration images, per-channel weights: TensorRT's rules.

Which products stay in float is measured, not guessed (`quantization_plan.py`).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from infsa_deploy.config import Int8
from infsa_deploy.graph.shapes import infer_all_shapes

Batches = Sequence[npt.NDArray[np.float32]]

OUTPUT_CHANNEL = 1  # axis of a MatMul weight [in, out] with one scale an entry


def quantizable(model: ir.Model) -> list[str]:
    """Names of the MatMul nodes whose right operand is a 2-D weight: the projections and the MLP, token by token."""
    return [
        str(node.name)
        for node in model.graph
        if node.op_type == "MatMul" and (weight := node.inputs[1]) is not None and _is_matrix(weight)
    ]


def quantize(model: ir.Model, nodes: Sequence[str], kind: Int8, calibration: Batches) -> ir.Model:
    """Quantise the MatMul `nodes` of a float32 model; the model given is left as it is.

    Args:
        model: float32; custom nodes keep their bodies and attributes.
        nodes: names out of `quantizable(model)`.
        kind: `dynamic` or `static`.
        calibration: image batches [B, C, H, W] float32, read by `static` only.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        ir.save(model, source, external_data="float.onnx.data")
        common: dict[str, Any] = {"nodes_to_quantize": list(nodes), "per_channel": True, "weight_type": QuantType.QInt8}
        common["use_external_data_format"] = True
        if kind == "dynamic":
            quantize_dynamic(source, target, extra_options={"MatMulConstBOnly": True}, **common)
        else:
            image = model.graph.inputs[0]
            batches = in_batches_of(image.shape[0] if image.shape is not None else None, calibration)
            quantize_static(
                source,
                target,
                _Reader(str(image.name), batches),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
                op_types_to_quantize=["MatMul"],
                extra_options={
                    "ActivationSymmetric": True,
                    "WeightSymmetric": True,
                    "QDQOpTypePerChannelSupportToAxis": {"MatMul": OUTPUT_CHANNEL},
                },
                **common,
            )
        return _loaded(target, model)


def in_batches_of(size: object, batches: Batches) -> Batches:
    """The same images `size` at a time, the last batch filled up with its last image; as given if that is no number."""
    if not isinstance(size, int):
        return batches
    images = np.concatenate(batches)
    filled = np.concatenate([images, np.repeat(images[-1:], -len(images) % size, axis=0)])
    return np.split(filled, len(filled) // size)


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
    def __init__(self, name: str, batches: Batches) -> None:
        self._feeds: Iterator[dict[str, Any]] = iter([{name: batch} for batch in batches])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _is_matrix(weight: ir.Value) -> bool:
    return weight.is_initializer() and weight.const_value is not None and len(weight.const_value.shape) == 2


def _loaded(path: Path, original: ir.Model) -> ir.Model:
    model = ir.load(path)
    ir.external_data.load_to_model(model)
    model.ir_version = original.ir_version
    model.metadata_props.clear()
    infer_all_shapes(model)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantisers advise on the root logger; their errors are raised, not logged."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
