"""Proof that an exported model computes what its reference model computes.

The truth is the user's own module in float64. How wrong a correct program may be is what the same module gets wrong in
the artefact's type, over a number of images that is fixed beforehand: see `tolerance`. The form that the export
makes of the module is compared with it in float64, so that no bound of a narrow type can hide a changed formula.

No module runs in int8. There the error that was measured on the calibration images, and recorded in the model, is added
to the bound of float32. It was measured on the logits, so other outputs are not compared: `evaluate --attention`
measures what int8 does to attention maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.config import Trust
from infsa_deploy.errors import ModelError, ToleranceError
from infsa_deploy.export.attention_maps import with_attention_maps
from infsa_deploy.export.rewrite.deployable import to_reference
from infsa_deploy.export.sources import Reference
from infsa_deploy.records.model import ImageSpec, ModelMetadata
from infsa_deploy.records.validation import OutputComparison, ValidationReport
from infsa_deploy.runtime.sessions.artefact import open_artefact
from infsa_deploy.runtime.sessions.protocol import Arrays, ModelSession
from infsa_deploy.validation.inputs import Plan, call_in_batches, inputs_by_kind
from infsa_deploy.validation.reference import (
    DisturbedRun,
    ReferenceOutputs,
    ReferenceRun,
    check_same_weights,
    rebuild_reference,
    rounded_tensors,
)
from infsa_deploy.validation.rewrite import exported_form, rewrite_difference
from infsa_deploy.validation.tolerance import Wide, judge_model

DISTURBANCES = 8  # of the reference, to see whether an image lies on an edge


def validate_model(
    path: Path,
    plan: Plan,
    *,
    weights: Path | None = None,
    module: str | None = None,
    threads: int | None = None,
    trust: Trust | None = None,
    known: ReferenceOutputs | None = None,
    progress: Callable[[str], None] = lambda phase: None,
) -> ValidationReport:
    """Compare the model at `path`, ONNX (run by ONNX Runtime on the CPU) or an engine, with its reference model.

    Args:
        path: a model written by infsa-deploy.
        plan: the inputs.
        weights: where the checkpoint is now, if it has moved since the export.
        module: `package.module:factory` of the reference, for a model exported from Python.
        threads: see OrtSession.
        trust: whether an engine may run code on the processor.
        known: what the reference gave before, for other files of its model; what it gives now is added.
        progress: called with the phase about to start.

    Raises:
        ModelError: the model cannot be loaded, or the reference found is not the one it was exported from.
        UsageError: the plan leaves nothing to compare.
    """
    with closing(open_artefact(path, threads=threads, trust=trust)) as candidate:
        metadata = candidate.metadata
        progress("building the reference model")
        reference = rebuild_reference(metadata, weights, module)
        check_same_weights(reference, metadata, path)
        known = known or ReferenceOutputs()
        comparisons: list[OutputComparison] = []
        rewrite = ""
        for own, image in _at_sizes(reference.module, metadata.image):
            comparing = _Comparing(own, reference, image, metadata, candidate, known, progress)
            for kind in inputs_by_kind(plan, image, candidate.inputs, metadata.dtype):
                comparisons += comparing(kind, plan)
            rewrite = rewrite or comparing.rewrite(plan)
    passed = not rewrite and all(comparison.passed for comparison in comparisons)
    return ValidationReport(
        str(path), candidate.runtime, metadata.dtype, yardstick_of(metadata), tuple(comparisons), passed, rewrite
    )


def validate_models(paths: Sequence[Path], plan: Plan, **options: Any) -> tuple[ValidationReport, ...]:
    """validate_model of each, with its `options`; files of one model, one after the other, share one reference run."""
    known = ReferenceOutputs()
    return tuple(validate_model(path, plan, known=known, **options) for path in paths)


def yardstick_of(metadata: ModelMetadata) -> str:
    """What the bounds of a model come from, in words."""
    if metadata.dtype == "int8":
        return "the module in float32, and the error recorded when it was quantised"
    narrow = "" if metadata.dtype == "fp32" else f", weights and modules' outputs rounded to {metadata.dtype}"
    return f"the module in float32{narrow}"


def yardstick_type(metadata: ModelMetadata) -> str:
    """The type that the reference runs in beside an artefact: its own, float32 for int8."""
    return "fp32" if metadata.dtype == "int8" else metadata.dtype


def check_tolerance(reports: Sequence[ValidationReport]) -> None:
    """Raise ToleranceError where a report did not pass: by its rewrite, its yardstick, or the output furthest out."""
    for report in reports:
        if report.rewrite:
            raise ToleranceError(
                f"{report.model} was exported in a form that is not its module: {report.rewrite}.",
                "the export replaces attention that it recognises, and this module computes something else.",
                "export it again: a module that cannot be rewritten is then traced as it is.",
            )
    failed = [(report, c) for report in reports for c in report.comparisons if not c.passed]
    if not failed:
        return
    report, worst = max(failed, key=lambda pair: (not pair[1].plausible, pair[1].share_of_bound))
    if not worst.plausible:
        raise ToleranceError(
            f"{report.model} cannot be proven: output {worst.output!r}, {worst.inputs}.",
            f"the reference itself errs by {worst.yardstick_rms:.3g} in {report.dtype} (root mean square), "
            f"where the type explains {worst.plausible_rms:.3g}.",
            "the model does not stand that type: export it in another one." if report.dtype in ("fp16", "bf16") else "",
        )
    raise ToleranceError(
        f"{report.model} is out of tolerance: output {worst.output!r}, {worst.inputs}.",
        f"its root mean square error is {worst.rms:.3g}, the bound {worst.rms_bound:.3g}; "
        f"its largest error is {worst.max_abs:.3g}, the bound {worst.bound:.3g}.",
        "find the layer with --find-divergence.",
    )


def _at_sizes(module: nn.Module, image: ImageSpec) -> Iterator[tuple[nn.Module, ImageSpec]]:
    """The reference at the model's one size; at two, one of them not square, where the size is free."""
    yield module, replace(image, multiple_of=None)
    if image.multiple_of:
        assert isinstance(module, ViT)
        size = (image.height + image.multiple_of, image.width + 3 * image.multiple_of)
        yield module.at_image_size(size), replace(image, height=size[0], width=size[1], multiple_of=None)


class _Comparing:
    """One artefact against its reference, on images of one size."""

    def __init__(
        self,
        own: nn.Module,
        reference: Reference,
        image: ImageSpec,
        metadata: ModelMetadata,
        candidate: ModelSession,
        known: ReferenceOutputs,
        progress: Callable[[str], None],
    ) -> None:
        self.own, self.image, self.metadata, self.candidate, self.progress = own, image, metadata, candidate, progress
        names = [info.name for info in candidate.outputs]
        maps = "attention" in names
        self.names = ["logits"] if metadata.dtype == "int8" and "logits" in names else names
        self.module = with_attention_maps(to_reference(own), reference) if maps else own
        known.begin((reference.source, metadata.weights_sha256, maps))
        self.exact = known.kept(self.module, "fp64")
        self.yardstick = known.kept(self.module, yardstick_type(metadata))

    def rewrite(self, plan: Plan) -> str:
        """What differs in the exported form of the module, on the first input of the plan, in float64."""
        if self.metadata.form != "ops":
            return ""
        first = replace(plan, batch=1)
        feeds = next(iter(next(iter(self._inputs(first).values()))))
        self.progress("comparing the exported form with the module")
        axis = self.candidate.inputs[0].shape[0]
        form = exported_form(self.own, feeds, axis if isinstance(axis, int) else None)
        return rewrite_difference(self.own, form, feeds, ReferenceRun(self.own, "fp64")(feeds))

    def _inputs(self, plan: Plan) -> dict[str, Iterator[Arrays]]:
        return inputs_by_kind(plan, self.image, self.candidate.inputs, self.metadata.dtype)

    def __call__(self, kind: str, plan: Plan) -> list[OutputComparison]:
        """Compare each output on the images of one kind."""
        inputs = f"{kind} {self.image.height}x{self.image.width}"
        batches = list(self._inputs(plan)[kind])
        count = sum(_count(feeds) for feeds in batches)
        self.progress(f"comparing {count} {inputs} images")
        ran = [(self.exact(feeds), self.yardstick(feeds), call_in_batches(self.candidate, feeds)) for feeds in batches]
        self._check_names(ran[0][0])
        compared = []
        for name in self.names:
            parts = [
                [_by_image(arrays[name], _count(feeds)) for arrays in triple]
                for feeds, triple in zip(batches, ran, strict=True)
            ]
            exact, narrow, found = (np.concatenate(part) for part in zip(*parts, strict=True))
            disturbed = _Disturbed(self.module, yardstick_type(self.metadata), name, batches, exact)
            compared.append(self._compared(name, inputs, exact, narrow, found, disturbed))
        return compared

    def _check_names(self, truth: Arrays) -> None:
        missing = [name for name in self.names if name not in truth]
        if missing:
            raise ModelError(
                f"the reference model has no output {', '.join(missing)}.",
                f"its outputs are {', '.join(truth)}.",
                "export the model again.",
            )

    def _compared(
        self, name: str, inputs: str, exact: Wide, narrow: Wide, found: Wide, disturbed: _Disturbed
    ) -> OutputComparison:
        judged = judge_model(
            found,
            narrow,
            exact,
            yardstick_type(self.metadata),
            rounded_tensors(self.module),
            disturbed,
            self.metadata.quantization_error or 0.0,
        )
        scale = float(np.abs(exact).max(initial=0))
        agreement = None
        if exact.ndim == 2:
            agreement = float((exact.argmax(axis=1) == found.argmax(axis=1)).mean())
        return OutputComparison(
            output=name,
            inputs=inputs,
            images=len(exact),
            edges=judged.edges,
            max_abs=judged.largest,
            relative=judged.largest / scale if scale else judged.largest,
            rms=judged.rms,
            cosine=smallest_cosine(exact, found),
            top1_agreement=agreement,
            yardstick_rms=judged.yardstick_rms,
            plausible_rms=judged.plausible_rms,
            rms_bound=judged.rms_bound,
            bound=judged.largest_bound,
        )


@dataclass(frozen=True)
class _Disturbed:
    """Asks the reference in float64, disturbed by about one u, whether it explains errors on single images."""

    module: nn.Module
    dtype: str
    output: str
    batches: Sequence[Arrays]
    exact: Wide

    def __call__(self, images: npt.NDArray[np.intp], errors: Wide) -> npt.NDArray[np.bool_]:
        feeds = {name: np.concatenate([batch[name] for batch in self.batches])[images] for name in self.batches[0]}
        largest = np.zeros(len(images))
        for seed in range(DISTURBANCES):
            found = DisturbedRun(self.module, self.dtype, seed)(feeds)[self.output]
            if len(found) != len(images):
                break
            error = (found - self.exact[images]).reshape(len(images), -1)
            largest = np.maximum(largest, np.sqrt(np.mean(error**2, axis=1)))
        explained: npt.NDArray[np.bool_] = largest >= errors / 2
        return explained


def smallest_cosine(exact: Wide, found: Wide) -> float:
    """The smallest cosine between an image's outputs; zeros point where zeros do, and nothing else does."""
    flat, other = exact.reshape(len(exact), -1), found.reshape(len(exact), -1)
    norms = np.linalg.norm(flat, axis=1) * np.linalg.norm(other, axis=1)
    directionless = (flat == other).all(axis=1).astype(np.float64)
    return float(np.divide((flat * other).sum(axis=1), norms, out=directionless, where=norms > 0).min())


def _count(feeds: Arrays) -> int:
    return len(next(iter(feeds.values())))


def _by_image(array: npt.NDArray[Any], count: int) -> Wide:
    """[images, ...] in float64; an output that has no axis of images counts as one."""
    wide = array.astype(np.float64)
    return wide if wide.ndim and len(wide) == count else wide[None]
