"""Where an artefact parts from what it should compute: the first layer further off than a correct program may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from infsa_deploy.errors import UsageError
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.records.validation import Divergence, LayerDifference, ValidationReport
from infsa_deploy.runtime.sessions.protocol import Arrays
from infsa_deploy.validation.against_reference import yardstick_type
from infsa_deploy.validation.inner_tensors import FLOATS, Inside, images_at_once, inner_tensors, look_into
from infsa_deploy.validation.inputs import Plan, sample_inputs
from infsa_deploy.validation.reference import ReferenceRun, check_same_weights, rebuild_reference, rounded_tensors
from infsa_deploy.validation.tolerance import MODEL_FACTOR, Wide, allowed_error, root_mean_square


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

    The bound is the smallest that `report` derived for an output. A layer diverges when the root mean square of its
    error, relative to that of its values in `base`, is above the bound, or is not a number.

    Raises:
        UsageError: no tensor is common to both.
        HostError, ModelError: as inner_tensors.
    """
    trusted, candidate = look_into(base), look_into(Path(report.model))
    feeds = _feeds(plan, candidate, images_at_once([trusted, candidate]))
    layers = [
        (node, value.name or "") for node in candidate.model.graph for value in node.outputs if value.dtype in FLOATS
    ]
    expected, found = inner_tensors(trusted, feeds), inner_tensors(candidate, feeds)
    bound = min(c.rms_bound / (root_mean_square(_wide(expected[c.output])) or 1.0) for c in report.comparisons)
    compared = [
        _difference(node.name or "", node.op_type, name, _wide(expected[name]), found[name], bound)
        for node, name in layers
        if name in expected and name in found and expected[name].shape == found[name].shape
    ]
    if not compared:
        raise UsageError(f"{base} and {report.model} have no tensor in common.", "", "compare exports of one form.")
    return _divergence(str(base), report.model, compared, next((layer for layer in compared if _leaves(layer)), None))


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
    candidate = look_into(Path(report.model))
    metadata = candidate.metadata
    reference = rebuild_reference(metadata, weights, module)
    check_same_weights(reference, metadata, candidate.path)
    feeds = _feeds(plan, candidate, images_at_once([candidate]))
    kinds = {name: type(found).__name__ for name, found in reference.module.named_modules()}
    names = {name for stage, found in _stages(reference.module) for name in (stage, *_children(stage, found))}
    exact = ReferenceRun(reference.module, "fp64").inner(feeds, names)
    narrow = ReferenceRun(reference.module, yardstick_type(metadata)).inner(feeds, names)
    tensors = inner_tensors(candidate, feeds)
    roundings, images = rounded_tensors(reference.module), len(next(iter(feeds.values())))
    compared = [
        _nearest(name, kinds[name], truth, tensors, _bound(truth, narrow[name], images, metadata, roundings))
        for name, truth in exact.items()
    ]
    found = {layer.node for layer in compared}
    stages = [layer for layer in compared if layer.node.rpartition(".")[0] not in found]
    first = next((stage for stage in stages if _leaves(stage)), None)
    inside = [layer for layer in compared if first and layer.node.startswith(f"{first.node}.") and _leaves(layer)]
    return _divergence("the reference in float64", report.model, stages, inside[0] if inside else first)


def _bound(truth: Wide, narrow: Wide, images: int, metadata: ModelMetadata, roundings: int) -> float:
    """What a module's output may differ by, relative to its root mean square."""
    scale = root_mean_square(truth) or 1.0
    allowed = allowed_error(root_mean_square(narrow - truth), scale, images, yardstick_type(metadata), roundings)
    quantised = MODEL_FACTOR * (metadata.quantization_error or 0.0) * float(np.abs(truth).max(initial=0))
    return (allowed + quantised) / scale


def _feeds(plan: Plan, inside: Inside, count: int) -> Arrays:
    """`count` inputs of the kind that `plan` begins with."""
    few = Plan(count if plan.real else 0, 0 if plan.real else count, plan.seed)
    metadata = inside.metadata
    return sample_inputs(few, replace(metadata.image, multiple_of=None), inside.inputs, metadata.dtype)


def _children(name: str, module: nn.Module) -> list[str]:
    return [f"{name}.{child}" for child, _ in module.named_children()]


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
    error = _wide(found) - expected
    relative = root_mean_square(error) / (root_mean_square(expected) or 1.0)
    if not np.isfinite(relative):
        return LayerDifference(node, op, tensor, None, None, bound)
    return LayerDifference(node, op, tensor, float(np.abs(error).max(initial=0)), relative, bound)


def _wide(array: npt.NDArray[Any]) -> Wide:
    return array.astype(np.float64)


def _divergence(
    base: str, candidate: str, compared: Sequence[LayerDifference], first: LayerDifference | None
) -> Divergence:
    return Divergence(base, candidate, len(compared), first, max(compared, key=_severity))


def _leaves(layer: LayerDifference) -> bool:
    return layer.relative is None or layer.relative > layer.bound_relative


def _severity(layer: LayerDifference) -> float:
    return float("inf") if layer.relative is None else layer.relative / layer.bound_relative
