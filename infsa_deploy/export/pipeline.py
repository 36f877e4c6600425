"""From a reference model to an ONNX file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir
import torch
from infsa_models.checkpoint import check_finite, weights_hash
from torch import nn

from infsa_deploy.config import ExportConfig, Int8, ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export import PIPELINE
from infsa_deploy.export.attention_maps import check_maps_known, maps_wrapper
from infsa_deploy.export.dynamic_size import trace_dynamic_size
from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.rewrite.deployable import infsa_attentions
from infsa_deploy.export.rewrite.proven import Rewriting, proven_program, rewrite
from infsa_deploy.export.sources import Reference, foreign_reference
from infsa_deploy.export.trace import to_onnx
from infsa_deploy.files import check_target
from infsa_deploy.graph.cost.memory import memory_need
from infsa_deploy.graph.passes.tile_tokens import tile_tokens
from infsa_deploy.graph.precision.retype import retype
from infsa_deploy.graph.store import load_model, save_model
from infsa_deploy.records.export import ExportReport
from infsa_deploy.records.model import ImageSpec, ModelMetadata
from infsa_deploy.version import __version__

if TYPE_CHECKING:
    from infsa_deploy.graph.precision.int8 import Batches


def export_reference(
    reference: Reference,
    path: Path,
    config: ExportConfig | None = None,
    *,
    calibration: Batches = (),
    progress: Callable[[str], None] = lambda phase: None,
) -> ExportReport:
    """Export `reference` to `path` and report what was written.

    Args:
        reference: the model.
        path: the ONNX file to write.
        config: see ExportConfig.
        calibration: image batches [B, C, H, W] float32 that int8 is measured and calibrated on.
        progress: called with the phase about to start.

    Raises:
        ModelError: the module cannot be traced.
        UsageError, HostError: the file cannot be written.
    """
    return _export(reference, reference.example_inputs(), path, config or ExportConfig(), calibration, progress)


def export_quantized(
    exported: Path, reference: Reference, path: Path, kind: Int8, calibration: Batches
) -> ExportReport:
    """Write the int8 form of `exported`, a float32 export of `reference`: the file that exporting it whole would give.

    Raises: as export_reference; ModelError when `exported` cannot be read.
    """
    check_target(path, [exported], beside=[".data"])
    return _write_quantized(*load_model(exported), reference, path, kind, calibration)


def export_module(
    module: nn.Module,
    example_inputs: Sequence[torch.Tensor],
    path: str | Path,
    *,
    config: ExportConfig | None = None,
    image: ImageSpec | None = None,
    classes: Sequence[str] = (),
    calibration: Batches = (),
) -> ExportReport:
    """Export any module; attention that computes what the authors' `InfSAAttention` does is put on custom ops.

    Args:
        module: a trained model; it is copied, never changed.
        example_inputs: one tensor an argument of `forward`, batch axis first; the image is the first [B, C, H, W].
        path: the ONNX file to write.
        config: see ExportConfig.
        image: how pictures become the image; default: the example's size, pixels taken to [-1, 1].
        classes: class names; default: `class 0`, ...
        calibration: image batches [B, C, H, W] float32 that int8 is measured and calibrated on.

    Raises:
        ModelError: the module fails on the examples, cannot be traced, or what was traced computes something else.
        UsageError, HostError: an argument is impossible, or the file cannot be written.
    """
    module = copied(module).eval()
    found = foreign_reference(module, example_inputs, Path(path).stem, ModelSource())
    if len(classes) not in (0, len(found.classes)):
        raise UsageError(
            f"{len(classes)} classes are named.",
            f"the model has {len(found.classes)}: they are those of its output logits [batch, classes].",
            "name each once.",
        )
    reference = replace(found, image=image or found.image, classes=tuple(classes) or found.classes)
    return _export(reference, example_inputs, Path(path), config or ExportConfig(), calibration)


def _export(
    reference: Reference,
    examples: Sequence[torch.Tensor],
    path: Path,
    config: ExportConfig,
    calibration: Batches,
    progress: Callable[[str], None] = lambda phase: None,
) -> ExportReport:
    weights = reference.source.weights
    check_target(path, [Path(weights)] if weights else [], beside=[".data"])
    check_finite(reference.module)
    _check_traceable(reference, config)
    progress("comparing attention in float64")
    rewriting = rewrite(reference.module, examples, fold=config.fold, static_batch=config.static_batch)
    model, image, rewriting = _traced(rewriting, reference, config, progress)
    if config.require_ops:
        _check_on_ops(rewriting)
    for transform in PIPELINE:
        progress(transform.__name__.replace("_", " "))
        model = transform(model)
    if config.tile_tokens:
        model = tile_tokens(model, config.tile_tokens)
    precision = None if config.dtype == "fp32" else retype(model, config.dtype, keep_io=config.keep_io)
    metadata = ModelMetadata(
        variant=reference.variant,
        form="ops" if rewriting.forms else "reference",
        architecture=reference.architecture,
        image=image,
        classes=reference.classes,
        weights_sha256=weights_hash(reference.module),
        source=reference.source,
        dtype=config.dtype,
        memory=memory_need(model, image, reference.architecture.get("patch_size")),
        tool_version=__version__,
        tile_tokens=config.tile_tokens,
    )
    if config.int8:
        report = _write_quantized(model, metadata, reference, path, config.int8, calibration, progress)
    else:
        progress(f"writing {path}")
        save_model(model, metadata, path)
        report = ExportReport(str(path), metadata, precision)
    notices = _notices(rewriting, reference)
    return replace(report, rewritten=tuple(rewriting.forms), kept=dict(rewriting.kept), notices=notices)


def _traced(
    rewriting: Rewriting, reference: Reference, config: ExportConfig, progress: Callable[[str], None]
) -> tuple[ir.Model, ImageSpec, Rewriting]:
    """The graph before the passes, what its image is, and the rewriting as it was proven."""
    progress("tracing")
    if config.attention_maps:
        _check_maps_possible(rewriting.examples, config)
    if config.dynamic_size:
        model, image = trace_dynamic_size(rewriting, reference.image)
        return model, image, rewriting
    wrap = None
    if config.attention_maps:
        wrap = maps_wrapper(rewriting, reference)
    program, proven = proven_program(rewriting, wrap)
    if config.attention_maps:
        check_maps_known(proven)
    progress("converting to ONNX")
    return to_onnx(program), reference.image, proven


def _notices(rewriting: Rewriting, reference: Reference) -> tuple[str, ...]:
    lines = [
        f"{name or 'the module'} is traced as it is, without custom ops: {why}." for name, why in rewriting.kept.items()
    ]
    if reference.variant == "none":
        lines.append(
            "no module with InfSA attention was found: the model is exported as it computes, without custom ops "
            "(attention that is a function and no module is traced likewise)."
        )
    return tuple(lines)


def _check_on_ops(rewriting: Rewriting) -> None:
    if rewriting.kept or not rewriting.forms:
        name, why = next(iter(rewriting.kept.items()), ("", "no module with InfSA attention was found"))
        raise ModelError(
            f"not every attention could be put on the custom ops{f': {name}' if name else ''}.",
            f"{why}.",
            "leave out --require-ops to have it traced as it is.",
        )


def _write_quantized(
    model: ir.Model,
    metadata: ModelMetadata,
    reference: Reference,
    path: Path,
    kind: Int8,
    calibration: Batches,
    progress: Callable[[str], None] = lambda phase: None,
) -> ExportReport:
    from infsa_deploy.graph.precision.int8_choice import quantize_reported  # needs onnxruntime, export does not

    model, report = quantize_reported(model, reference.image, reference.classes, kind, calibration, progress)
    need = memory_need(model, metadata.image, reference.architecture.get("patch_size"))
    metadata = replace(metadata, dtype="int8", memory=need, quantization_error=report.max_error)
    progress(f"writing {path}")
    save_model(model, metadata, path)
    return ExportReport(str(path), metadata, quantization=report)


def _check_traceable(reference: Reference, config: ExportConfig) -> None:
    if not config.fold and any(getattr(a, "hops", 1) == "inf" for a in infsa_attentions(reference.module).values()):
        raise UsageError(
            "the whole series cannot be exported with --no-fold.",
            "the reference solves it as a linear system, for which ONNX has no operator.",
            "give a number of hops, such as --hops 100, or leave out --no-fold.",
        )


def _check_maps_possible(examples: Sequence[torch.Tensor], config: ExportConfig) -> None:
    if config.dynamic_size:
        raise UsageError(
            "attention maps are not added to a model of any size.",
            "they lie on one grid of patches.",
            "export it once for each --image-size, or without --attention-maps.",
        )
    if len(examples) != 1:
        raise UsageError(
            f"attention maps are not added to a model of {len(examples)} inputs.",
            "they lie on the patches of one image.",
            "export without attention maps.",
        )
