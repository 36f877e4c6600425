"""What goes in: where a model comes from and how it is to be exported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from infsa_deploy.errors import UsageError

Hops = int | Literal["inf"]
Dtype = Literal["fp32", "fp16", "bf16"]
Int8 = Literal["dynamic", "static"]

VARIANTS = ("linear", "pure", "softmax")
DTYPES: tuple[Dtype, ...] = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class ModelSource:
    """How to build the reference model again, bit for bit, from names and files.

    Attributes:
        model: name of a zoo model, or None.
        weights: path of a checkpoint, or None; beside `model` it replaces the zoo's weights.
        module: `package.module:factory` of a foreign `nn.Module`, or None.
        variant: stated attention variant, where the checkpoint does not say.
        heads: stated number of heads, where the checkpoint does not say.
        image_size: (height, width) in pixels, or None for the model's own.
        hops: Neumann hops of pure attention, or None for the model's own.
        power_iterations: power iterations of linear attention, or None for the model's own.
    """

    model: str | None = None
    weights: str | None = None
    module: str | None = None
    variant: str | None = None
    heads: int | None = None
    image_size: tuple[int, int] | None = None
    hops: Hops | None = None
    power_iterations: int | None = None


@dataclass(frozen=True)
class ExportConfig:
    """How a model becomes an ONNX file.

    Attributes:
        fold: replace attention by its deployable form on custom ops; False keeps the reference formula.
        static_batch: fixed batch size, or None for a dynamic batch axis.
        dynamic_size: leave height and width free, in whole patches; positions are interpolated in the graph.
        tile_tokens: do token-wise work so many tokens at a time, for images too large to hold otherwise, or None.
        dtype: type of weights and activations, one of DTYPES.
        int8: quantise matrix products, `dynamic` (for CPUs) or `static` (for engines), or None.
        keep_io: keep graph inputs and outputs float32 when `dtype` is narrower.
        attention_maps: add the output `attention` [B, L, H, h, w], one map of the patch grid a layer and head.
    """

    fold: bool = True
    static_batch: int | None = None
    dynamic_size: bool = False
    tile_tokens: int | None = None
    dtype: Dtype = "fp32"
    int8: Int8 | None = None
    keep_io: bool = True
    attention_maps: bool = False

    def __post_init__(self) -> None:
        if self.tile_tokens and (self.int8 or self.dtype != "fp32"):
            raise UsageError(
                "--tile-tokens goes with float32 only.",
                "tiles are for ONNX Runtime on a CPU, engines have no loops over sequences.",
                "leave out --int8 and --dtype, or the tiles.",
            )
        if self.int8 and self.dtype != "fp32":
            raise UsageError(
                f"--int8 and --dtype {self.dtype} cannot be combined.",
                "the products that int8 leaves alone stay in float32; an engine builder narrows them itself.",
                "choose one of the two.",
            )


def parse_image_size(text: str) -> tuple[int, int]:
    """Read `224` or `480x640` (height x width, pixels) as (height, width); UsageError otherwise."""
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text.strip().lower())
    if not match:
        raise UsageError(
            f"image size {text!r} is not valid.",
            "it is one number, or height x width, in pixels.",
            "write 224 or 480x640.",
        )
    height = int(match[1])
    return height, int(match[2] or height)


def parse_hops(text: str) -> Hops:
    """Read a hop count >= 1, or `inf` for the whole Neumann series; UsageError otherwise."""
    if text == "inf":
        return "inf"
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"hops {text!r} is not valid.",
            "attention needs at least one hop; inf sums the series to its end.",
            "write a whole number from 1, or inf.",
        )
    return int(text)
