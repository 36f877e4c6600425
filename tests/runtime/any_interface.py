"""ONNX files of models with other inputs and outputs than an image and its logits, as an export would write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from infsa_deploy.config import ModelSource
from infsa_deploy.records.codec import to_json
from infsa_deploy.records.model import METADATA_KEY, ImageSpec, MemoryNeed, ModelMetadata

TWO_INPUTS = """
    <ir_version: 9, opset_import: ["": 20]>
    two (float[batch, 3, 8, 8] image, bool[batch, 3] mask) => (float[batch, 3] boxes, int64[] count) {
        axes = Constant <value_ints = [2, 3]> ()
        means = ReduceMean <keepdims = 0> (image, axes)
        kept = Cast <to = 1> (mask)
        boxes = Mul (means, kept)
        numbers = Cast <to = 7> (mask)
        count = ReduceSum <keepdims = 0> (numbers)
    }
"""
MAPS = """
    <ir_version: 9, opset_import: ["": 20]>
    maps (float[batch, 3, 8, 8] image) => (float[batch, 3, 8, 8] logits) { logits = Relu (image) }
"""
LOGITS_AND_MORE = """
    <ir_version: 9, opset_import: ["": 20]>
    more (float[batch, 3, 8, 8] image) => (float[batch, 3] logits, float[batch, 3, 8, 8] tokens) {
        axes = Constant <value_ints = [2, 3]> ()
        logits = ReduceMean <keepdims = 0> (image, axes)
        tokens = Relu (image)
    }
"""
FIXED_BATCH = """
    <ir_version: 9, opset_import: ["": 20]>
    fixed (float[2, 3, 8, 8] image) => (float[] largest) { largest = ReduceMax <keepdims = 0> (image) }
"""


def write(text: str, path: Path, classes: tuple[str, ...] = (), size: int = 8) -> Path:
    """Write the model, with the metadata of an export, to `path`."""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    metadata = ModelMetadata(
        variant="none",
        form="ops",
        architecture={"class": "somewhere.Else"},
        image=ImageSpec(3, size, size, (0.5,) * 3, (0.5,) * 3),
        classes=classes,
        weights_sha256="0" * 64,
        source=ModelSource(),
        dtype="fp32",
        memory=MemoryNeed(0, 0.0),
        tool_version="0",
    )
    onnx.helper.set_model_props(model, {METADATA_KEY: to_json(metadata)})
    onnx.save(model, path)
    return path


def feeds(batch: int = 2) -> dict[str, np.ndarray]:
    """Arrays for TWO_INPUTS."""
    image = np.random.default_rng(0).standard_normal((batch, 3, 8, 8), dtype=np.float32)
    return {"image": image, "mask": np.arange(batch * 3).reshape(batch, 3) % 2 == 0}
