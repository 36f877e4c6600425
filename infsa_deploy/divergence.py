"""Where two ONNX files of one model part: the first layer whose output is further off than the result may be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from infsa_deploy.errors import UsageError
from infsa_deploy.export.store import load_model
from infsa_deploy.records import Divergence, LayerDifference, ValidationReport
from infsa_deploy.runtime.artefact import is_engine
from infsa_deploy.runtime.protocol import Arrays
from infsa_deploy.validate import Plan, sample_images

IMAGES = 4  # all tensors of all layers are held at once
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


def find_divergence(base: Path, report: ValidationReport, plan: Plan) -> Divergence:
    """Compare the model of `report` with `base`, layer by layer, on tensors that have the same name in both.

    The bound is the smallest that `report` derived for an output, relative to its largest value: a layer diverges
    when its largest error, relative to its largest value in `base`, is above it, or is not a number.

    Raises:
        UsageError: one of the two is an engine, whose inner tensors cannot be read, or no tensor is common to both.
        ModelError: a file cannot be loaded.
    """
    candidate = Path(report.model)
    for path in (base, candidate):
        if is_engine(path):
            raise UsageError(f"{path} is an engine.", "its builder fused the layers.", "compare the ONNX files.")
    model, metadata = load_model(candidate)
    plan = Plan(min(plan.real, IMAGES), 0 if plan.real else min(plan.random, IMAGES), plan.seed)
    images = sample_images(plan, metadata.image, metadata.dtype)
    layers = [(node, value.name or "") for node in model.graph for value in node.outputs if value.dtype in FLOATS]
    expected, found = _all_outputs(load_model(base)[0], images), _all_outputs(model, images)
    bound = min(c.bound / float(np.abs(expected[c.output]).max()) for c in report.comparisons)
    compared = [
        _difference(node, name, expected[name], found[name])
        for node, name in layers
        if name in expected and name in found and expected[name].shape == found[name].shape
    ]
    if not compared:
        raise UsageError(f"{base} and {candidate} have no tensor in common.", "", "compare exports of one form.")
    first = next((layer for layer in compared if not layer.relative <= bound), None)
    return Divergence(str(base), str(candidate), bound, len(compared), first, _worst(compared))


def _worst(layers: Sequence[LayerDifference]) -> LayerDifference:
    return max(layers, key=lambda layer: layer.relative if np.isfinite(layer.relative) else np.inf)


def _difference(node: ir.Node, tensor: str, expected: np.ndarray, found: np.ndarray) -> LayerDifference:
    wide, narrow = expected.astype(np.float64), found.astype(np.float64)
    error, scale = float(np.abs(narrow - wide).max(initial=0)), float(np.abs(wide).max(initial=0))
    return LayerDifference(node.name or "", node.op_type, tensor, error, error / scale if scale else error)


def _all_outputs(model: ir.Model, images: np.ndarray) -> Arrays:
    """Run the model in ONNX Runtime on the CPU with every floating tensor of its main graph as an output."""
    known = set(model.graph.outputs)
    inner = [value for node in model.graph for value in node.outputs if value.dtype in FLOATS and value not in known]
    model.graph.outputs.extend(inner)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    (image,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    dtype = np.float16 if image.type == "tensor(float16)" else np.float32
    return dict(zip(names, session.run(names, {image.name: images.astype(dtype)}), strict=True))
