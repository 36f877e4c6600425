"""Where an export goes by default, and what the user adds to a model's description."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from infsa_deploy.config import ExportConfig
from infsa_deploy.errors import HostError, UsageError
from infsa_deploy.export.sources import Reference

ARTIFACTS = Path("artifacts")


def default_output(reference: Reference, config: ExportConfig) -> Path:
    """`artifacts/NAME[_HxW][_suffixes].onnx`; the folder is made. HostError when it cannot be."""
    parts = [reference.name]
    if reference.source.key:
        parts.append(re.sub(r"\W", "_", reference.source.key))
    if reference.source.image_size:
        parts.append("x".join(map(str, reference.source.image_size)))
    if reference.source.hops not in (None, 1):
        parts.append(f"hops{reference.source.hops}")
    if reference.source.power_iterations not in (None, 1):
        parts.append(f"power{reference.source.power_iterations}")
    if config.static_batch:
        parts.append(f"batch{config.static_batch}")
    if config.dynamic_size:
        parts.append("dynamic")
    if config.tile_tokens:
        parts.append("tiled")
    if not config.fold:
        parts.append("reference")
    if config.attention_maps:
        parts.append("maps")
    if config.dtype != "fp32":
        parts.append(config.dtype)
    if config.int8:
        parts.append(f"int8_{config.int8}")
    try:
        ARTIFACTS.mkdir(exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the folder {ARTIFACTS}.", str(error), "write elsewhere with -o.") from error
    return ARTIFACTS / f"{'_'.join(parts)}.onnx"


def relabelled(reference: Reference, classes: Path | None, mean: Sequence[float], std: Sequence[float]) -> Reference:
    """`reference` with class names from a file and another normalisation.

    Raises:
        UsageError: the file is missing, or a count does not fit the model.
    """
    image = reference.image
    image = replace(image, mean=_per_channel("--mean", mean, image.channels) or image.mean)
    image = replace(image, std=_per_channel("--std", std, image.channels) or image.std)
    for option, values in (("--mean", image.mean), ("--std", image.std)):
        if not all(map(math.isfinite, values)):
            raise UsageError(f"{option} {values} is not valid.", "it is not finite.", "give finite numbers.")
    if any(value <= 0 for value in image.std):
        raise UsageError(f"--std {image.std} is not valid.", "pixels are divided by it.", "give positive numbers.")
    names = _read_classes(classes, len(reference.classes)) if classes else reference.classes
    return replace(reference, image=image, classes=names)


def _per_channel(option: str, values: Sequence[float], channels: int) -> tuple[float, ...]:
    if len(values) in (0, channels):
        return tuple(values)
    if len(values) == 1:
        return (values[0],) * channels
    raise UsageError(f"{option} has {len(values)} values.", f"the model has {channels} channels.", "give one each.")


def _read_classes(path: Path, count: int) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a byte-order mark first
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read class names from {path}.", str(error), "give a UTF-8 text file.") from error
    names = tuple(text.rstrip("\n").split("\n"))
    if blank := [number for number, name in enumerate(names, 1) if not name.strip()]:
        raise UsageError(f"{path} names no class in line {blank[0]}.", "the line is blank.", "write one name a line.")
    if len(names) != count:
        raise UsageError(f"{path} names {len(names)} classes.", f"the model has {count}.", "write one name a line.")
    return names
