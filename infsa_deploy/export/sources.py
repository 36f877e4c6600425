"""Building the reference model that a ModelSource names: from the zoo, a checkpoint, or a Python factory."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from infsa_models import checkpoint, zoo
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.config import VARIANTS, ModelSource
from infsa_deploy.errors import DeployError, ModelError, UsageError
from infsa_deploy.export.deployable import infsa_attentions, variant_of
from infsa_deploy.records import ImageSpec

DEFAULT_SIZE = (224, 224)
UNIT_NORMALISATION = (0.5, 0.5)  # mean and std where nothing says otherwise: pixels to [-1, 1]


@dataclass(frozen=True)
class Reference:
    """A reference model in eval mode and what is known of it.

    Attributes:
        module: image [B, C, H, W] float32 -> logits [B, classes].
        name: a short name for files.
        variant: `linear`, `pure`, `softmax`.
        architecture: configuration of our ViT, or the class name of a foreign module.
        image: the image input.
        classes: class names.
        source: what built it.
    """

    module: nn.Module
    name: str
    variant: str
    architecture: Mapping[str, Any]
    image: ImageSpec
    classes: tuple[str, ...]
    source: ModelSource


def load_reference(source: ModelSource) -> Reference:
    """Build the model `source` names.

    Raises:
        UsageError: unknown names, contradictory or impossible requests.
        ModelError: a checkpoint or module that cannot be used.
    """
    _check_variant_name(source.variant)
    if source.module:
        return _from_module(source)
    if source.model is None and source.weights:
        return _from_checkpoint(source)
    return _from_zoo(source)


def _from_zoo(source: ModelSource) -> Reference:
    name = source.model or zoo.DEFAULT_MODEL[source.variant or "linear"]
    chosen = zoo.entry(name)
    if source.variant not in (None, chosen.config.variant):
        raise UsageError(
            f"model {name} is not {source.variant}.",
            f"its variant is {chosen.config.variant}.",
            f"leave --variant out, or take {zoo.DEFAULT_MODEL[str(source.variant)]}.",
        )
    module = zoo.build(
        name,
        image_size=source.image_size,
        hops=source.hops,
        power_iterations=source.power_iterations,
        weights=source.weights,
    )
    image = _image_spec(module, chosen.mean, chosen.std, chosen.crop_fraction)
    architecture = module.config.to_dict()
    return Reference(module, name, chosen.config.variant, architecture, image, chosen.class_names, source)


def _from_checkpoint(source: ModelSource) -> Reference:
    path = str(source.weights)
    module = checkpoint.load_vit(
        path,
        variant=source.variant,
        num_heads=source.heads,
        grid=source.grid,
        image_size=source.image_size,
        hops=source.hops,
        power_iterations=source.power_iterations,
    )
    mean, std = UNIT_NORMALISATION
    channels = module.config.in_channels
    image = _image_spec(module, (mean,) * channels, (std,) * channels, 1.0)
    classes = numbered_classes(module.config.num_classes)
    name = os.path.splitext(os.path.basename(path))[0]
    return Reference(module, name, module.config.variant, module.config.to_dict(), image, classes, source)


def _from_module(source: ModelSource) -> Reference:
    module = _call_factory(str(source.module))
    attentions = list(infsa_attentions(module).values())
    _set_series_depth(attentions, source)
    height, width = source.image_size or DEFAULT_SIZE
    channels = _input_channels(module)
    mean, std = UNIT_NORMALISATION
    image = ImageSpec(channels, height, width, (mean,) * channels, (std,) * channels)
    with torch.no_grad():
        logits = module(torch.zeros(1, channels, height, width))
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
        raise ModelError(
            f"{source.module} does not return logits [batch, classes].",
            f"it returned {_describe(logits)}.",
            "wrap the model so that forward(image) returns its logits.",
        )
    return Reference(
        module,
        str(source.module).rpartition(":")[2],
        variant_of(attentions[0]) if attentions else "softmax",
        {"class": f"{type(module).__module__}.{type(module).__qualname__}"},
        image,
        numbered_classes(logits.shape[1]),
        source,
    )


def _call_factory(spec: str) -> nn.Module:
    package, _, attribute = spec.partition(":")
    if not package or not attribute:
        raise UsageError(f"--module {spec!r} is not valid.", "", "write it as package.module:factory.")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the user's own module lies in the working folder
    try:
        factory = getattr(importlib.import_module(package), attribute)
        module = factory()
    except DeployError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--module {spec}: {error}.", "", "check the name, or run where it can be imported."
        ) from error
    except Exception as error:
        raise ModelError(
            f"--module {spec} failed.", f"{type(error).__name__}: {error}", "call it in Python."
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"--module {spec} returned {_describe(module)}.", "", "return an nn.Module.")
    return module.eval()


def _set_series_depth(attentions: list[nn.Module], source: ModelSource) -> None:
    for attention in attentions:
        if source.hops is not None:
            attention.hops = source.hops  # type: ignore[assignment]
        if source.power_iterations is not None:
            attention.power_iterations = source.power_iterations  # type: ignore[assignment]


def _input_channels(module: nn.Module) -> int:
    first = next((child for child in module.modules() if isinstance(child, nn.Conv2d)), None)
    return 3 if first is None else first.in_channels


def _image_spec(module: ViT, mean: tuple[float, ...], std: tuple[float, ...], crop_fraction: float) -> ImageSpec:
    height, width = module.config.image_size
    return ImageSpec(module.config.in_channels, height, width, mean, std, crop_fraction)


def numbered_classes(count: int) -> tuple[str, ...]:
    """Names for classes nobody named: `class 0`, `class 1`, ..."""
    return tuple(f"class {index}" for index in range(count))


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"


def _check_variant_name(variant: str | None) -> None:
    if variant is not None and variant not in VARIANTS:
        raise UsageError(f"variant {variant!r} is unknown.", "", f"choose one of {', '.join(VARIANTS)}.")
