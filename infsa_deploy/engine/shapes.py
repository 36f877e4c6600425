"""The shapes an engine takes: what was asked, completed from the model, checked against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from infsa_deploy.config import EngineConfig, Shape
from infsa_deploy.engine.onnx_file import NAMELESS, Axes
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
    are the model's own (height, width) by default, where `image_size` gives it. Free axes of one name are of one size
    in all inputs: what is stated of one input counts for the others.

    Raises:
        UsageError: an unknown input; a rank or fixed size that is not the model's; two sizes for one axis; a free axis
            other than the batch without a size; min <= opt <= max does not hold.
    """
    given = dict(zip(KINDS, (config.min_shapes, config.opt_shapes, config.max_shapes), strict=True))
    for kind, shapes in given.items():
        for name, shape in shapes.items():
            _check_fits(f"--{kind}-shapes", name, shape, inputs)
    sizes = {kind: _sizes_by_axis(f"--{kind}-shapes", shapes, inputs) for kind, shapes in given.items()}
    asked = {
        name: _Asked(
            axes,
            {kind: tuple(sizes[kind].get(_shared(name, axis)) for axis in axes) for kind in KINDS},
            dict(zip((2, 3), image_size, strict=True)) if image_size and len(axes) == 4 else {},
        )
        for name, axes in inputs.items()
    }
    rooms: dict[int | str, int] = {}
    for name, one in asked.items():
        for batch in (_shared(name, axis) for axis in one.axes[:1]):
            rooms[batch] = min(one.room, rooms.get(batch, one.room))
    return {name: _resolve(name, one, rooms) for name, one in asked.items()}


@dataclass(frozen=True)
class _Asked:
    """What is known of an input: its axes, the size stated of each by kind, and the model's own size of some."""

    axes: Axes
    stated: Mapping[str, tuple[int | None, ...]]
    own: Mapping[int, int]

    def sizes(self, index: int) -> dict[str, int]:
        """The sizes stated of an axis, by kind."""
        found = {kind: sizes[index] for kind, sizes in self.stated.items()}
        return {kind: size for kind, size in found.items() if size is not None}

    @property
    def largest_image(self) -> Shape:
        """The axes behind the first, each at the largest size that is stated or the model's own."""
        return tuple(
            axis if isinstance(axis, int) else max([self.own.get(index, 1), *self.sizes(index).values()])
            for index, axis in enumerate(self.axes[1:], start=1)
        )

    @property
    def room(self) -> int:
        """The largest default batch."""
        return DEFAULT_ELEMENTS // math.prod(self.largest_image)


def _sizes_by_axis(option: str, shapes: Mapping[str, Shape], inputs: Mapping[str, Axes]) -> dict[int | str, int]:
    """What is stated of each free axis, by its name; UsageError where two inputs say different sizes."""
    found: dict[int | str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        for axis, size in zip(inputs[name], shape, strict=True):
            known, first = found.setdefault(_shared(name, axis), (size, name))
            if known != size and isinstance(axis, str):
                raise UsageError(
                    f"{option} gives axis {axis!r} two sizes.",
                    f"it is {known} in {first!r} and {size} in {name!r}, and one axis to the model.",
                    "give it one size.",
                )
    return {axis: size for axis, (size, _) in found.items()}


def _shared(name: str, axis: int | str) -> int | str:
    """What stands for an axis in all inputs: its name; one without a name is the input's own."""
    return f"{name} {axis}" if isinstance(axis, str) and axis.startswith(NAMELESS) else axis


def _resolve(name: str, asked: _Asked, rooms: Mapping[int | str, int]) -> ShapeRange:
    columns = [_axis_range(name, asked, index, rooms) for index in range(len(asked.axes))]
    minimum, optimum, maximum = zip(*columns, strict=True) if columns else ((), (), ())
    for low, high, names in ((minimum, optimum, "min and opt"), (optimum, maximum, "opt and max")):
        if any(a > b for a, b in zip(low, high, strict=True)):
            first, second = names.split(" and ")
            raise UsageError(
                f"the {first} shape of {name!r} is larger than its {second} shape.",
                f"{first} is {spell(low)}, {second} is {spell(high)}.",
                "every axis needs min <= opt <= max.",
            )
    return ShapeRange(minimum, optimum, maximum, _why_lowered(asked, maximum))


def _axis_range(name: str, asked: _Asked, index: int, rooms: Mapping[int | str, int]) -> tuple[int, int, int]:
    axis, own = asked.axes[index], asked.own
    if isinstance(axis, int):
        return axis, axis, axis
    stated = asked.sizes(index)
    sizes = [*stated.values(), *filter(None, [own.get(index)])]
    if index > 0 and not sizes:
        raise UsageError(
            f"axis {index} ({axis}) of input {name!r} is free.",
            "the file does not say what sizes it takes.",
            f"state it: --min-shapes, --opt-shapes and --max-shapes {name}:{spell(asked.axes)}",
        )
    if index == 0:
        defaults = _default_batches(rooms[_shared(name, axis)])
    else:
        defaults = (own[index],) * 3 if index in own else (min(sizes), max(sizes), max(sizes))
    low = stated.get("min", min(defaults[0], *sizes, defaults[0]))
    high = stated.get("max", max(defaults[2], *sizes, defaults[2]))
    return low, stated.get("opt", min(max(defaults[1], low), high)), high


def _default_batches(room: int) -> tuple[int, int, int]:
    low, best, high = (max(1, min(batch, room)) for batch in DEFAULT_BATCHES)
    return low, best, high


def _why_lowered(asked: _Asked, maximum: Shape) -> str | None:
    free = bool(asked.axes) and isinstance(asked.axes[0], str) and asked.stated["max"][0] is None
    if not free or maximum[0] >= DEFAULT_BATCHES[-1] or asked.room > maximum[0]:  # for another input's sake
        return None
    image = asked.largest_image
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
