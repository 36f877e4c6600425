"""Choosing which matrix products may be int8, by what each of them does to the logits.

All candidates are quantised and the error measured on the calibration images. Where it is above the limit, each is
quantised alone and measured, and the worst ones go back to float until the rest keep within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime
from infsa_models import digits

from infsa_deploy.config import Int8
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.graph.precision.int8 import Batches, in_batches_of, quantizable, quantize
from infsa_deploy.records.export import QuantizationReport
from infsa_deploy.records.model import ImageSpec

ERROR_LIMIT = 0.05  # root mean square error of the logits over their root mean square

DIGITS_IMAGE = ImageSpec(1, digits.IMAGE_SIDE, digits.IMAGE_SIDE, (digits.MEAN,), (digits.STD,))
TEST_BATCH = 50

Logits = npt.NDArray[np.float64]


def quantize_reported(
    model: ir.Model,
    image: ImageSpec,
    classes: Sequence[str],
    kind: Int8,
    calibration: Batches,
    progress: Callable[[str], None],
) -> tuple[ir.Model, QuantizationReport]:
    """quantize_measured, with the accuracy before and after where the model reads the digits test set."""
    if not calibration:
        raise UsageError(
            "int8 needs images to measure its error on.", "none were given.", "add --calibration zoo, or a folder."
        )
    quantized, report = quantize_measured(model, kind, calibration, progress=progress)
    if (tuple(classes), image) != (digits.CLASS_NAMES, DIGITS_IMAGE):
        return quantized, report
    progress("measuring accuracy on the digits test set")
    test = digits.test_set()
    batches = np.split(digits.normalize(test.images), len(test.images) // TEST_BATCH)
    before, after = (
        float((run_logits(candidate, batches).argmax(axis=1) == test.labels).mean()) for candidate in (model, quantized)
    )
    return quantized, replace(report, accuracy_before=before, accuracy_after=after)


def quantize_measured(
    model: ir.Model, kind: Int8, calibration: Batches, *, progress: Callable[[str], None] = lambda phase: None
) -> tuple[ir.Model, QuantizationReport]:
    """Quantise as much of `model` as keeps its logits within ERROR_LIMIT of float on the calibration images.

    Args:
        model: float32; left as it is.
        kind: `dynamic` or `static`.
        calibration: image batches [B, C, H, W] float32.
        progress: called with the phase about to start.

    Raises:
        ModelError: no product can be quantised within the limit.
    """
    exact = run_logits(model, calibration)
    candidates = quantizable(model)
    errors: dict[str, float] = {}
    chosen = candidates
    while chosen:
        progress(f"quantising {len(chosen)} of {len(candidates)} products")
        quantized = quantize(model, chosen, kind, calibration)
        found = run_logits(quantized, calibration)
        error = relative_error(found, exact)
        if error <= ERROR_LIMIT:
            return quantized, _report(kind, candidates, chosen, errors, error, found, exact)
        if not errors:
            errors = _errors_alone(model, candidates, kind, calibration, exact, progress)
            chosen = sorted(candidates, key=lambda name: errors[name])
        chosen = chosen[: -_step_back(error, [errors[name] for name in chosen])]
    raise ModelError(
        "no matrix product of the model can be int8.",
        f"each of them alone moves the logits by more than {ERROR_LIMIT:.0%}.",
        "export with --dtype fp16 instead.",
    )


def _errors_alone(
    model: ir.Model,
    candidates: Sequence[str],
    kind: Int8,
    calibration: Batches,
    exact: Logits,
    progress: Callable[[str], None],
) -> dict[str, float]:
    errors = {}
    for index, name in enumerate(candidates):
        progress(f"measuring int8 product {index + 1} of {len(candidates)}")
        errors[name] = relative_error(run_logits(quantize(model, [name], kind, calibration), calibration), exact)
    return errors


def run_logits(model: ir.Model, batches: Batches) -> Logits:
    """The model's first output on all batches, by ONNX Runtime on the CPU: [images, classes]."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    image, images = session.get_inputs()[0], sum(map(len, batches))
    logits = [session.run(None, {image.name: batch})[0] for batch in in_batches_of(image.shape[0], batches)]
    return np.concatenate(logits)[:images].astype(np.float64)


def relative_error(found: Logits, exact: Logits) -> float:
    """Root mean square of the difference over root mean square of `exact`."""
    scale = math.sqrt(float(np.square(exact).mean()))
    error = math.sqrt(float(np.square(found - exact).mean()))
    return error / scale if scale else error


def _step_back(error: float, alone: Sequence[float]) -> int:
    """How many of the worst to give up at once: errors that add up in squares tell about how many are too many."""
    excess = error**2 - ERROR_LIMIT**2
    given_up = 0.0
    for count, worst in enumerate(reversed(alone), start=1):
        given_up += worst**2
        if given_up >= excess:
            return count
    return max(1, len(alone) // 2)


def _report(
    kind: str,
    candidates: Sequence[str],
    chosen: Sequence[str],
    errors: dict[str, float],
    error: float,
    found: Logits,
    exact: Logits,
) -> QuantizationReport:
    return QuantizationReport(
        kind=kind,
        images=len(exact),
        products=len(candidates),
        kept_float=tuple(name for name in candidates if name not in chosen),
        error_alone=errors,
        relative_error=error,
        max_error=float(np.abs(found - exact).max() / np.abs(exact).max()),
        top1_agreement=float((found.argmax(axis=1) == exact.argmax(axis=1)).mean()),
    )
