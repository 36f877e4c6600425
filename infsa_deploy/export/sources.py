"""Building the reference model that a ModelSource names: from the zoo, a checkpoint, or a Python factory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from infsa_models import checkpoint, weight_files, zoo
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.config import VARIANTS, ModelSource
from infsa_deploy.errors import DeployError, ModelError, UsageError
from infsa_deploy.export.interface import class_count, input_names, module_outputs
from infsa_deploy.export.rewrite.deployable import infsa_attentions, with_series_depth
from infsa_deploy.export.rewrite.forms import DEPTH_OF, variant_of
from infsa_deploy.export.unwrap import unwrapped
from infsa_deploy.records.model import ImageSpec

DEFAULT_SIZE = (224, 224)
UNIT_NORMALISATION = 0.5  # mean and std where nothing says otherwise: pixels to [-1, 1]


@dataclass(frozen=True)
class Reference:
    """A reference model in eval mode and what is known of it.

    Attributes:
        module: inputs, of which one is the image [B, C, H, W] float32, to outputs, see `interface`.
        name: a short name for files.
        variant: `linear`, `pure`, `softmax`, or `none` of a foreign module without InfSA attention.
        architecture: configuration of our ViT, or the class name of a foreign module.
        image: the image input.
        classes: class names.
        source: what built it.
        examples: example inputs of a module that has more of them than the image; None for the image alone.
    """

    module: nn.Module
    name: str
    variant: str
    architecture: Mapping[str, Any]
    image: ImageSpec
    classes: tuple[str, ...]
    source: ModelSource
    examples: tuple[torch.Tensor, ...] | None = None

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """One example of each input, batch axis first."""
        image = self.image
        return self.examples or (torch.zeros(1, image.channels, image.height, image.width),)


def load_reference(source: ModelSource, note: Callable[[str], None] = lambda line: None) -> Reference:
    """Build the model `source` names.

    Args:
        source: names and files; where it names no model, the source of the result names the one that was taken.
        note: told what of a checkpoint was left aside or converted.

    Raises:
        UsageError: unknown names, contradictory or impossible requests.
        ModelError: a checkpoint or module that cannot be used.
    """
    _check_variant_name(source.variant)
    _check_nothing_is_ignored(source)
    if source.module:
        return _from_module(source)
    if source.model is None and source.weights:
        return _from_checkpoint(source, note)
    return _from_zoo(source, note)


def _from_zoo(source: ModelSource, note: Callable[[str], None]) -> Reference:
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
        key=source.key,
        note=note,
    )
    image = _image_spec(module, chosen.mean, chosen.std, chosen.crop_fraction)
    architecture = module.config.to_dict()
    named = replace(source, model=name)
    return Reference(module, name, chosen.config.variant, architecture, image, chosen.class_names, named)


def _from_checkpoint(source: ModelSource, note: Callable[[str], None]) -> Reference:
    path = str(source.weights)
    module = checkpoint.load_vit(
        path,
        variant=source.variant,
        num_heads=source.heads,
        grid=source.grid,
        image_size=source.image_size,
        hops=source.hops,
        power_iterations=source.power_iterations,
        key=source.key,
        note=note,
    )
    unit = (UNIT_NORMALISATION,) * module.config.in_channels
    image = _image_spec(module, unit, unit, 1.0)
    classes = numbered_classes(module.config.num_classes)
    name = weight_files.name_of(Path(path))
    return Reference(module, name, module.config.variant, module.config.to_dict(), image, classes, source)


def _from_module(source: ModelSource) -> Reference:
    module = _of_series_depth(_call_factory(str(source.module)), source)
    image = torch.zeros(1, _input_channels(module), *(source.image_size or DEFAULT_SIZE))
    examples = _own_examples(module) or (image,)
    return foreign_reference(module, examples, str(source.module).rpartition(":")[2], source)


def _own_examples(module: nn.Module) -> tuple[torch.Tensor, ...]:
    """The inputs that a module shows as its `example_input_array`, as Lightning's do; empty where it shows none."""
    shown = getattr(module, "example_input_array", None)
    shown = (shown,) if isinstance(shown, torch.Tensor) else shown
    tensors = isinstance(shown, tuple | list) and all(isinstance(x, torch.Tensor) for x in shown)
    return tuple(shown) if tensors else ()  # type: ignore[arg-type]


def foreign_reference(module: nn.Module, examples: Sequence[torch.Tensor], name: str, source: ModelSource) -> Reference:
    """A module in eval mode that is not ours, after one run on `examples`, of which the image is the first with 4 axes.

    What training put around the model is taken off; a submodule is changed by that.

    Raises:
        UsageError: there is no image [B, C, H, W], or not one example an input.
        ModelError: the module is not in float32, fails on the examples, or returns no tensors.
    """
    module = unwrapped(module)
    image = next((x for x in examples if x.ndim == 4), None)
    if image is None:
        shown = list(examples[0].shape) if len(examples) else "missing"
        raise UsageError(f"the example image is {shown}.", "", "give (image, ...), the image [batch, C, H, W].")
    channels, height, width = image.shape[1:]
    unit = (UNIT_NORMALISATION,) * channels
    kind = type(module)
    return Reference(
        module,
        name,
        _variant(module, source),
        {"class": f"{kind.__module__}.{kind.__qualname__}"},
        ImageSpec(channels, height, width, unit, unit),
        numbered_classes(_class_count(module, examples, image)),
        source,
        tuple(examples) if len(examples) > 1 else None,
    )


def _variant(module: nn.Module, source: ModelSource) -> str:
    """The variant of the first attention that names one; else `none`, or `softmax` where the user says so."""
    named = (str(attention.variant).removesuffix("_infsa") for attention in infsa_attentions(module).values())
    known = next((variant for variant in named if variant in DEPTH_OF), None)
    return known or source.variant or "none"


def _class_count(module: nn.Module, examples: Sequence[torch.Tensor], image: torch.Tensor) -> int:
    name = type(module).__name__
    others = {p.dtype for p in module.parameters() if p.is_floating_point()} - {torch.float32}
    if others:
        raise ModelError(
            f"{name} is in {', '.join(map(str, others))}.", "an export starts from float32.", "call its method float()."
        )
    input_names(module, len(examples))
    try:
        outputs = module_outputs(module, examples)
    except DeployError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} fails on an image of {'x'.join(map(str, image.shape[1:]))}.",
            f"{type(error).__name__}: {error}",
            "state the size that it takes (--image-size), or wrap it so that forward(image) returns its outputs.",
        ) from error
    return class_count(outputs) or 0


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


def _of_series_depth(module: nn.Module, source: ModelSource) -> nn.Module:
    """`module` with the hops or power iterations asked for, which attention that is not ours would not know of."""
    asked = {variant: depth for variant, name in DEPTH_OF.items() if (depth := getattr(source, name)) is not None}
    for variant in asked:
        attentions = [found for found in infsa_attentions(module).values() if variant_of(found) == variant]
        if not attentions:
            what, why = f"{source.module} has no {DEPTH_OF[variant]}.", f"it holds no {variant} attention."
            raise UsageError(what, why, f"leave out --{DEPTH_OF[variant].replace('_', '-')}.")
    return with_series_depth(module, asked) if asked else module


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


def _check_nothing_is_ignored(source: ModelSource) -> None:
    asked: dict[str, object] = {"--heads": source.heads, "--grid": source.grid}
    if not source.weights:
        asked["--key"] = source.key
    if source.module:
        asked |= {"--model": source.model, "--weights": source.weights}
        asked |= {"--variant": source.variant if source.variant != "softmax" else None}
    elif source.weights and not source.model:
        return
    ignored = [option for option, value in asked.items() if value]
    if ignored:
        of, fix = ("--module", "have the factory do it.") if source.module else ("a model of the zoo", "leave it out.")
        raise UsageError(f"{' and '.join(ignored)} cannot go with {of}.", "it would be ignored.", fix)


def _check_variant_name(variant: str | None) -> None:
    if variant is not None and variant not in VARIANTS:
        raise UsageError(f"variant {variant!r} is unknown.", "", f"choose one of {', '.join(VARIANTS)}.")
