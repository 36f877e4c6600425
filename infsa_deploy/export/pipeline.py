"""From a reference model to an ONNX file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from infsa_models.checkpoint import weights_hash
from torch import nn

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export import PIPELINE
from infsa_deploy.export.attention_maps import with_attention_maps
from infsa_deploy.export.deployable import infsa_attentions, to_deployable, to_reference, variant_of
from infsa_deploy.export.precision import retype
from infsa_deploy.export.sources import Reference, numbered_classes
from infsa_deploy.export.store import save_model
from infsa_deploy.export.trace import trace
from infsa_deploy.files import check_target
from infsa_deploy.records import ExportReport, ImageSpec, ModelMetadata
from infsa_deploy.version import __version__


def export_reference(reference: Reference, path: Path, config: ExportConfig | None = None) -> ExportReport:
    """Export `reference` to `path` and report what was written.

    Raises:
        ModelError: the module cannot be traced.
        UsageError, HostError: the file cannot be written.
    """
    image = reference.image
    example = torch.zeros(1, image.channels, image.height, image.width)
    return _export(reference, (example,), path, config or ExportConfig())


def export_module(
    module: nn.Module,
    example_inputs: Sequence[torch.Tensor],
    path: str | Path,
    *,
    config: ExportConfig | None = None,
    image: ImageSpec | None = None,
    classes: Sequence[str] = (),
) -> ExportReport:
    """Export any module that holds attention shaped like the authors' `InfSAAttention`.

    Args:
        module: a trained model; it is copied, never changed.
        example_inputs: one tensor an argument of `forward`, batch axis first; the first is the image [B, C, H, W].
        path: the ONNX file to write.
        config: see ExportConfig.
        image: how pictures become the first input; default: the example's size, pixels taken to [-1, 1].
        classes: class names; default: `class 0`, ...

    Raises:
        ModelError: there is no InfSA attention in the module, or it cannot be traced.
        UsageError, HostError: the file cannot be written.
    """
    attentions = list(infsa_attentions(module).values())
    if not attentions:
        raise ModelError(
            f"{type(module).__name__} holds no InfSA attention.",
            "no submodule has q_proj, k_proj, v_proj, out_proj, rho_logit, num_heads and variant.",
            "convert the model's attention to InfSA first.",
        )
    channels, height, width = example_inputs[0].shape[1:]
    with torch.no_grad():
        logits = module.eval()(*example_inputs)
    reference = Reference(
        module=module,
        name=Path(path).stem,
        variant=variant_of(attentions[0]),
        architecture={"class": f"{type(module).__module__}.{type(module).__qualname__}"},
        image=image or ImageSpec(channels, height, width, (0.5,) * channels, (0.5,) * channels),
        classes=tuple(classes) or numbered_classes(logits.shape[-1]),
        source=ModelSource(),
    )
    return _export(reference, example_inputs, Path(path), config or ExportConfig())


def _export(reference: Reference, examples: Sequence[torch.Tensor], path: Path, config: ExportConfig) -> ExportReport:
    check_target(path)
    module = to_deployable(reference.module) if config.fold else to_reference(reference.module)
    if config.attention_maps:
        _check_single_input(examples)
        module = with_attention_maps(module, reference)
    model = trace(module, examples, static_batch=config.static_batch)
    for transform in PIPELINE:
        model = transform(model)
    precision = None if config.dtype == "fp32" else retype(model, config.dtype, keep_io=config.keep_io)
    metadata = ModelMetadata(
        variant=reference.variant,
        form="ops" if config.fold else "reference",
        architecture=reference.architecture,
        image=reference.image,
        classes=reference.classes,
        weights_sha256=weights_hash(reference.module),
        source=reference.source,
        dtype=config.dtype,
        tool_version=__version__,
    )
    save_model(model, metadata, path)
    return ExportReport(str(path), metadata, precision)


def _check_single_input(examples: Sequence[torch.Tensor]) -> None:
    if len(examples) != 1:
        raise UsageError(
            f"attention maps are not added to a model of {len(examples)} inputs.",
            "they lie on the patches of one image.",
            "export without attention maps.",
        )
