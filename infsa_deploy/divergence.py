"""Where an artefact parts from what it should compute: the first layer further off than a correct program may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from infsa_deploy.errors import UsageError
from infsa_deploy.export.store import load_model
from infsa_deploy.inner_tensors import FLOATS, images_at_once, inner_tensors, source_model
from infsa_deploy.records import ModelMetadata
from infsa_deploy.runtime.eager import EagerSession
from infsa_deploy.runtime.protocol import Arrays
from infsa_deploy.validate import (
    EPSILON,
    ERROR_FACTOR,
    check_same_weights,
    rebuild_reference,
    yardstick_session,
)
from infsa_deploy.validation_inputs import Plan, sample_images
from infsa_deploy.validation_records import Divergence, LayerDifference, ValidationReport

Wide = npt.NDArray[np.float64]


def find_divergence(
    reports: Sequence[ValidationReport], plan: Plan, *, weights: Path | None = None, module: str | None = None
) -> Divergence:
    """from_reference of one artefact, between_files of two, the trusted one first; UsageError for more."""
    if len(reports) > 2:
        raise UsageError("--find-divergence takes one or two models.", f"{len(reports)} given.", "name fewer.")
    if len(reports) == 2:
        return between_files(Path(reports[0].model), reports[1], plan)
    return from_reference(reports[0], plan, weights=weights, module=module)


def between_files(base: Path, report: ValidationReport, plan: Plan) -> Divergence:
    """Compare the artefact of `report` with `base`, layer by layer, on tensors that have the same name in both.

    The bound is the smallest that `report` derived for an output, relative to its largest value: a layer diverges
    when its largest error, relative to its largest value in `base`, is above it, or is not a number.

    Raises:
        UsageError: no tensor is common to both.
        HostError, ModelError: as inner_tensors.
    """
    candidate = Path(report.model)
    model, metadata = load_model(source_model(candidate))
    images = _images(plan, metadata, images_at_once([base, candidate]))
    layers = [(node, value.name or "") for node in model.graph for value in node.outputs if value.dtype in FLOATS]
    expected, found = inner_tensors(base, images), inner_tensors(candidate, images)
    bound = min(c.bound / float(np.abs(expected[c.output]).max()) for c in report.comparisons)
    compared = [
        _difference(node.name or "", node.op_type, name, expected[name].astype(np.float64), found[name], bound)
        for node, name in layers
        if name in expected and name in found and expected[name].shape == found[name].shape
    ]
    if not compared:
        raise UsageError(f"{base} and {candidate} have no tensor in common.", "", "compare exports of one form.")
    return _divergence(str(base), candidate, compared, next((layer for layer in compared if _leaves(layer)), None))


def from_reference(
    report: ValidationReport, plan: Plan, *, weights: Path | None = None, module: str | None = None
) -> Divergence:
    """Look for the output of each stage of the reference model among the tensors of the artefact of `report`.

    An export rewrites its model, so layers have no common names, and not every module is left. What must be left are
    the stages, the modules called one after the other, such as the blocks: the first whose output no tensor holds
    within the bound diverges, and within it the first such submodule. The truth is the reference in float64; the bound
    is that of `validate`, derived for each module from its own error in the artefact's precision. Where the artefact
    keeps the class token alone, that token is compared.

    Raises: as validate_model and inner_tensors.
    """
    candidate = Path(report.model)
    _, metadata = load_model(source_model(candidate))
    reference = rebuild_reference(metadata, weights, module)
    check_same_weights(reference, metadata, candidate)
    images = _images(plan, metadata, images_at_once([candidate]))
    image = replace(metadata.image, multiple_of=None)
    exact = _module_outputs(EagerSession(reference.module, image, "fp64"), images)
    narrow = _module_outputs(yardstick_session(reference.module, image, metadata.dtype), images)
    tensors = inner_tensors(candidate, images)
    kinds = {name: type(found).__name__ for name, found in reference.module.named_modules()}
    extra, epsilon = metadata.quantization_error or 0.0, EPSILON[metadata.dtype]
    compared = []
    for name, truth in exact.items():
        if name not in narrow:
            continue
        scale = float(np.abs(truth).max(initial=0)) or 1.0
        bound = ERROR_FACTOR * (float(np.abs(narrow[name] - truth).max(initial=0)) / scale + extra) + epsilon
        compared.append(_nearest(name, kinds[name], truth, tensors, bound))
    names = {layer.node for layer in compared}
    stages = [layer for layer in compared if layer.node.rpartition(".")[0] not in names]
    first = next((stage for stage in stages if _leaves(stage)), None)
    inside = [layer for layer in compared if first and layer.node.startswith(f"{first.node}.") and _leaves(layer)]
    return _divergence("the reference in float64", candidate, stages, inside[0] if inside else first)


def _images(plan: Plan, metadata: ModelMetadata, count: int) -> npt.NDArray[np.float32]:
    """`count` images of the kind that `plan` begins with."""
    few = Plan(count if plan.real else 0, 0 if plan.real else count, plan.seed)
    return sample_images(few, replace(metadata.image, multiple_of=None), metadata.dtype)


def _module_outputs(session: EagerSession, images: npt.NDArray[np.float32]) -> dict[str, Wide]:
    """The outputs of the stages of the session's model and of their submodules, in the order in which they end."""
    outputs: dict[str, Wide] = {}

    def keep(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                outputs[name] = output.to(torch.float64).numpy()

        return hook

    for name, stage in _stages(session.module):
        for child, submodule in stage.named_children():
            submodule.register_forward_hook(keep(f"{name}.{child}"))
        stage.register_forward_hook(keep(name))
    session({session.inputs[0].name: images})
    return outputs


def _stages(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The children of a module; lists of modules stand for what is in them."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from _stages(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _nearest(name: str, kind: str, truth: Wide, tensors: Arrays, bound: float) -> LayerDifference:
    """The tensor that comes nearest to a module's output, or to that of its first token."""
    forms = [truth, truth[:, :1], truth[:, 0]] if truth.ndim == 3 else [truth]
    differences = [
        _difference(name, kind, tensor, form, found, bound)
        for form in forms
        for tensor, found in tensors.items()
        if found.shape == form.shape
    ]
    if not differences:
        return LayerDifference(name, kind, "", None, None, bound)
    return min(differences, key=_severity)


def _difference(
    node: str, op: str, tensor: str, expected: Wide, found: npt.NDArray[np.floating], bound: float
) -> LayerDifference:
    error = float(np.abs(found.astype(np.float64) - expected).max(initial=0))
    scale = float(np.abs(expected).max(initial=0)) or 1.0
    if not np.isfinite(error / scale):
        return LayerDifference(node, op, tensor, None, None, bound)
    return LayerDifference(node, op, tensor, error, error / scale, bound)


def _divergence(
    base: str, candidate: Path, compared: Sequence[LayerDifference], first: LayerDifference | None
) -> Divergence:
    return Divergence(base, str(candidate), len(compared), first, max(compared, key=_severity))


def _leaves(layer: LayerDifference) -> bool:
    return layer.relative is None or layer.relative > layer.bound_relative


def _severity(layer: LayerDifference) -> float:
    return float("inf") if layer.relative is None else layer.relative / layer.bound_relative
