"""A static int8 model for tests: ONNX Runtime's quantizer over an export, calibrated on noise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class _Noise(CalibrationDataReader):
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        generator = np.random.default_rng(3)
        self._batches: Iterator[dict[str, np.ndarray]] = iter(
            [{name: generator.standard_normal(shape).astype(np.float32)} for _ in range(2)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantized(model: Path) -> Path:
    """Quantize the MatMuls of `model` to int8, symmetric, as Q/DQ nodes; returns the new file."""
    (image,) = onnx.load(model).graph.input
    shape = tuple(dim.dim_value or 2 for dim in image.type.tensor_type.shape.dim)
    path = model.with_name(f"{model.stem}_int8.onnx")
    quantize_static(
        model,
        path,
        _Noise(image.name, shape),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul"],
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    )
    return path
