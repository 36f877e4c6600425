"""The shapes an engine takes: what was asked, completed from the model, checked against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from infsa_deploy.config import EngineConfig, Shape
from infsa_deploy.engine.onnx_file import Axes
from infsa_deploy.errors import UsageError

DEFAULT_BATCHES = (1, 8, 32)
DEFAULT_ELEMENTS = 3 << 26  # the default batches end where the input holds more: 64 images of 3 x 1024 x 1024
KINDS = ("min", "opt", "max")


@dataclass(frozen=True)
class ShapeRange:
    """Smallest, best-served and largest shape of one input; `lowered` says why its default batch is below 32."""

    minimum: Shape
    optimum: Shape
    maximum: Shape
    lowered: str | None = None


def resolve_shapes(
    inputs: Mapping[str, Axes], config: EngineConfig, image_size: tuple[int, int] | None = None
) -> dict[str, ShapeRange]:
    """The range of each input of the model.

    Where nothing is stated, a free first axis runs over batches 1, 8, 32, fewer for huge images; what is stated
    bounds what is not (a stated maximum of 4 makes the default optimum 4). Free last axes of an image [B, C, H, W]
    are the model's own (height, width) by default, where `image_size` gives it.

    Raises:
        UsageError: an unknown input; a rank or fixed size that is not the model's; a free axis other than the
            batch without a size; min <= opt <= max does not hold.
    """
    given = dict(zip(KINDS, (config.min_shapes, config.opt_shapes, config.max_shapes), strict=True))
    for kind, shapes in given.items():
        for name, shape in shapes.items():
            _check_fits(f"--{kind}-shapes", name, shape, inputs)
    ranges = {}
    for name, axes in inputs.items():
        own = dict(zip((2, 3), image_size, strict=True)) if image_size and len(axes) == 4 else {}
        ranges[name] = _resolve(name, axes, {kind: shapes.get(name) for kind, shapes in given.items()}, own)
    return ranges


def _resolve(name: str, axes: Axes, given: Mapping[str, Shape | None], own: Mapping[int, int]) -> ShapeRange:
    columns = [_axis_range(name, axes, index, given, own) for index in range(len(axes))]
    minimum, optimum, maximum = zip(*columns, strict=True) if columns else ((), (), ())
    for low, high, names in ((minimum, optimum, "min and opt"), (optimum, maximum, "opt and max")):
        if any(a > b for a, b in zip(low, high, strict=True)):
            first, second = names.split(" and ")
            raise UsageError(
                f"the {first} shape of {name!r} is larger than its {second} shape.",
                f"{first} is {spell(low)}, {second} is {spell(high)}.",
                "every axis needs min <= opt <= max.",
            )
    return ShapeRange(minimum, optimum, maximum, _why_lowered(axes, maximum, given, own))


def _axis_range(
    name: str, axes: Axes, index: int, given: Mapping[str, Shape | None], own: Mapping[int, int]
) -> tuple[int, int, int]:
    axis = axes[index]
    if isinstance(axis, int):
        return axis, axis, axis
    stated = {kind: shape[index] for kind, shape in given.items() if shape is not None}
    sizes = [*stated.values(), *filter(None, [own.get(index)])]
    if index > 0 and not sizes:
        raise UsageError(
            f"axis {index} ({axis}) of input {name!r} is free.",
            "the file does not say what sizes it takes.",
            f"state it: --min-shapes, --opt-shapes and --max-shapes {name}:{spell(axes)}",
        )
    if index == 0:
        defaults = _default_batches(axes, given, own)
    else:
        defaults = (own[index],) * 3 if index in own else (min(sizes), max(sizes), max(sizes))
    low = stated.get("min", min(defaults[0], *sizes, defaults[0]))
    high = stated.get("max", max(defaults[2], *sizes, defaults[2]))
    return low, stated.get("opt", min(max(defaults[1], low), high)), high


def _default_batches(axes: Axes, given: Mapping[str, Shape | None], own: Mapping[int, int]) -> tuple[int, int, int]:
    room = DEFAULT_ELEMENTS // math.prod(_largest_image(axes, given, own))
    low, best, high = (max(1, min(batch, room)) for batch in DEFAULT_BATCHES)
    return low, best, high


def _largest_image(axes: Axes, given: Mapping[str, Shape | None], own: Mapping[int, int]) -> Shape:
    """The axes behind the first, each at the largest size that is stated or the model's own."""
    stated = [shape for shape in given.values() if shape is not None]
    return tuple(
        axis if isinstance(axis, int) else max([own.get(index, 1), *(shape[index] for shape in stated)])
        for index, axis in enumerate(axes[1:], start=1)
    )


def _why_lowered(axes: Axes, maximum: Shape, given: Mapping[str, Shape | None], own: Mapping[int, int]) -> str | None:
    if not axes or isinstance(axes[0], int) or given["max"] is not None or maximum[0] >= DEFAULT_BATCHES[-1]:
        return None
    image = _largest_image(axes, given, own)
    return (
        f"the largest batch is {maximum[0]}, not {DEFAULT_BATCHES[-1]}: an image of {spell(image)} is "
        f"{math.prod(image):,} numbers, and an input holds at most {DEFAULT_ELEMENTS:,} unless --max-shapes says more"
    )


def _check_fits(option: str, name: str, shape: Shape, inputs: Mapping[str, Axes]) -> None:
    if name not in inputs:
        raise UsageError(f"{option} names input {name!r}.", f"the model has {', '.join(inputs)}.", "name one of these.")
    axes = inputs[name]
    fits = len(axes) == len(shape) and all(
        not isinstance(axis, int) or axis == size for axis, size in zip(axes, shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"{option} {name}:{spell(shape)} does not fit the model.",
            f"{name!r} is {spell(axes)} there.",
            "only free axes can have another size; export the model again for another image size.",
        )


def spell(axes: Axes) -> str:
    """A shape as typed on the command line: `1x3x224x224`."""
    return "x".join(map(str, axes))
