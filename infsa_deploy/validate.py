"""Proof that an exported model computes what its reference model computes.

The yardstick is the reference in float64. How wrong a correct program may be is not a constant but what the same
model, run eagerly in the artefact's own precision, gets wrong: an output passes when its largest error is at most
twice that, plus one unit in the last place of the largest output (below which two correct programs may round
apart). On a few images the eager run may err little by chance: an output that does not pass is compared once more, on
more of them. For int8, which has no eager run, the error measured on the calibration images and recorded in the model
takes its place; it was measured on the logits, so attention maps are not compared: `evaluate --attention` measures
what int8 does to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from infsa_models.checkpoint import weights_hash
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError, ToleranceError
from infsa_deploy.export.attention_maps import with_attention_maps
from infsa_deploy.export.deployable import to_deployable, to_reference
from infsa_deploy.export.sources import Reference, load_reference
from infsa_deploy.records import ImageSpec, ModelMetadata
from infsa_deploy.runtime import Session
from infsa_deploy.runtime.artefact import open_artefact
from infsa_deploy.runtime.eager import EagerSession
from infsa_deploy.runtime.protocol import Arrays, ModelSession, call_in_pieces
from infsa_deploy.validation_inputs import Batch, Plan, inputs_by_kind
from infsa_deploy.validation_records import OutputComparison, ValidationReport

ERROR_FACTOR = 2.0
EPSILON = {"fp32": 2.0**-23, "int8": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}
YARDSTICKS = {"int8": "the error recorded when it was quantised"}


def validate_model(
    path: Path,
    plan: Plan,
    *,
    weights: Path | None = None,
    module: str | None = None,
    threads: int | None = None,
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
        known: what the reference gave before, for other files of its model; what it gives now is added.
        progress: called with the phase about to start.

    Raises:
        ModelError: the model cannot be loaded, or the reference found is not the one it was exported from.
        UsageError: the plan leaves nothing to compare.
    """
    with closing(open_artefact(path, threads=threads)) as candidate:
        metadata = candidate.metadata
        progress("building the reference model")
        reference = rebuild_reference(metadata, weights, module)
        check_same_weights(reference, metadata, path)
        comparisons: list[OutputComparison] = []
        maps = any(info.name == "attention" for info in candidate.outputs)
        known = known or ReferenceOutputs()
        known.begin((reference.source, metadata.weights_sha256, maps))
        for model, image in _at_sizes(reference.module, metadata.image):
            model = with_attention_maps(to_reference(model), reference) if maps else model
            exact = known.kept("fp64", partial(EagerSession, model, image, "fp64"))
            yardstick = known.kept(
                _eager_type(metadata.dtype), partial(yardstick_session, model, image, metadata.dtype)
            )
            comparing = _Comparing(image, metadata, exact, yardstick, candidate, progress)
            for kind in inputs_by_kind(plan, image, metadata.dtype):
                found = comparing(kind, plan)
                if not all(comparison.passed for comparison in found) and getattr(plan, kind) < plan.again:
                    found = comparing(kind, replace(plan, **{kind: plan.again}))
                comparisons += found
        passed = all(comparison.passed for comparison in comparisons)
        described = YARDSTICKS.get(metadata.dtype, f"eager {metadata.dtype}")
        return ValidationReport(str(path), candidate.runtime, metadata.dtype, described, tuple(comparisons), passed)


def validate_models(paths: Sequence[Path], plan: Plan, **options: Any) -> tuple[ValidationReport, ...]:
    """validate_model of each, with its `options`; files of one model, one after the other, share one reference run."""
    known = ReferenceOutputs()
    return tuple(validate_model(path, plan, known=known, **options) for path in paths)


class ReferenceOutputs:
    """Outputs of a reference by image and precision, so that files of one model do not each compute them.

    Only those of one model are kept, the last.
    """

    def __init__(self) -> None:
        self._model: Hashable = None
        self._outputs: dict[tuple[str, tuple[int, ...], bytes], Arrays] = {}

    def begin(self, model: Hashable) -> None:
        """From here on outputs are those of `model`."""
        if model != self._model:
            self._model, self._outputs = model, {}

    def kept(self, dtype: str, open_session: Callable[[], Session]) -> Callable[[Batch], Arrays]:
        """What runs a batch in a session opened for the first one that is not known."""
        opened = cache(open_session)

        def run(batch: Batch) -> Arrays:
            key = (dtype, batch.shape, hashlib.sha256(batch.tobytes()).digest())
            if key not in self._outputs:
                session = opened()
                self._outputs[key] = session({session.inputs[0].name: batch.astype(session.inputs[0].dtype)})
            return self._outputs[key]

        return run


def check_tolerance(reports: Sequence[ValidationReport]) -> None:
    """Raise ToleranceError where an output is out of its bound, naming the one that is furthest out."""
    failed = [(report.model, c) for report in reports for c in report.comparisons if not c.passed]
    if not failed:
        return
    model, worst = max(failed, key=lambda pair: pair[1].share_of_bound)
    raise ToleranceError(
        f"{model} is out of tolerance: output {worst.output!r}, {worst.inputs}.",
        f"its largest error is {worst.max_abs:.3g}; the bound is {worst.bound:.3g}.",
        "compare it with an export made with --no-fold, and report the difference.",
    )


def rebuild_reference(metadata: ModelMetadata, weights: Path | None = None, module: str | None = None) -> Reference:
    """Build the reference model that `metadata` names, from `weights` or `module` where given instead.

    Raises:
        ModelError: the metadata name no source, or it cannot be built.
    """
    source = metadata.source
    if weights:
        source = replace(source, weights=str(weights.resolve()))
    if module:
        size = metadata.image.height, metadata.image.width
        source = ModelSource(module=module, image_size=size, hops=source.hops, power_iterations=source.power_iterations)
    if source == ModelSource():
        raise ModelError(
            "the model does not say where its reference comes from.",
            "it was exported from a module in memory.",
            "name it: --module package.module:factory",
        )
    return load_reference(source)


def check_same_weights(reference: Reference, metadata: ModelMetadata, path: Path) -> None:
    """Raise ModelError unless `reference` has the weights that `path` was exported from."""
    found = weights_hash(reference.module)
    if found != metadata.weights_sha256:
        raise ModelError(
            f"the reference model is not the one {path} was exported from.",
            f"its weights hash to {found[:12]}, the model records {metadata.weights_sha256[:12]}.",
            "give the original checkpoint with --weights, or export again.",
        )


def _at_sizes(module: nn.Module, image: ImageSpec) -> Iterator[tuple[nn.Module, ImageSpec]]:
    """The reference at the model's one size; at two, one of them not square, where the size is free."""
    yield module, replace(image, multiple_of=None)
    if image.multiple_of:
        assert isinstance(module, ViT)
        size = (image.height + image.multiple_of, image.width + 3 * image.multiple_of)
        yield module.at_image_size(size), replace(image, height=size[0], width=size[1], multiple_of=None)


def yardstick_session(module: nn.Module, image: ImageSpec, dtype: str) -> EagerSession:
    """What runs eagerly in the artefact's precision; below float32 the form on the ops, whose sums are float32.

    The reference formula itself, in float16, overflows in those sums: its error would excuse anything.
    """
    eager = _eager_type(dtype)
    return EagerSession(module if eager == "fp32" else to_deployable(module), image, eager)


def _eager_type(dtype: str) -> str:
    return "fp32" if dtype == "int8" else dtype


@dataclass(frozen=True)
class _Comparing:
    image: ImageSpec
    metadata: ModelMetadata
    exact: Callable[[Batch], Arrays]
    yardstick: Callable[[Batch], Arrays]
    candidate: ModelSession
    progress: Callable[[str], None]

    def __call__(self, kind: str, plan: Plan) -> list[OutputComparison]:
        """Compare each output on the images of one kind."""
        inputs = f"{kind} {self.image.height}x{self.image.width}"
        self.progress(f"comparing {getattr(plan, kind)} {inputs} images")
        dtype = self.metadata.dtype
        names = [info.name for info in self.candidate.outputs if dtype != "int8" or info.name == "logits"]
        outputs: dict[str, list[tuple[Any, Any, Any]]] = {name: [] for name in names}
        for batch in inputs_by_kind(plan, self.image, dtype)[kind]:
            ran = (self.exact(batch), self.yardstick(batch), call_in_pieces(self.candidate, batch))
            for name, kept in outputs.items():
                wide, narrow, found = (arrays[name] for arrays in ran)
                kept.append((wide, narrow, found))
        return [
            _comparison(name, inputs, *map(_joined, zip(*kept, strict=True)), metadata=self.metadata)
            for name, kept in outputs.items()
        ]


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    return np.concatenate(parts).astype(np.float64)


def _comparison(
    name: str, kind: str, exact: Any, narrow: Any, found: Any, *, metadata: ModelMetadata
) -> OutputComparison:
    images = len(exact)
    scale = float(np.abs(exact).max())
    error, allowed = float(np.abs(found - exact).max()), float(np.abs(narrow - exact).max())
    if metadata.quantization_error is not None:
        allowed += metadata.quantization_error * scale
    flat, other = exact.reshape(images, -1), found.reshape(images, -1)
    norms = np.linalg.norm(flat, axis=1) * np.linalg.norm(other, axis=1)
    directionless = (flat == other).all(axis=1).astype(np.float64)  # zeros point where zeros do, and nothing else does
    cosine = np.divide((flat * other).sum(axis=1), norms, out=directionless, where=norms > 0)
    return OutputComparison(
        output=name,
        inputs=kind,
        images=images,
        max_abs=error,
        relative=error / scale if scale else error,
        cosine=float(cosine.min()),
        top1_agreement=float((flat.argmax(axis=1) == other.argmax(axis=1)).mean()),
        yardstick_max_abs=allowed,
        bound=ERROR_FACTOR * allowed + EPSILON[metadata.dtype] * scale,
    )
