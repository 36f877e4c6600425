"""The models by name: the paper's sizes, untrained, and three small trained ones that classify digits."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from infsa_deploy.errors import UsageError
from infsa_models import digits
from infsa_models.attention import Hops
from infsa_models.checkpoint import load_into
from infsa_models.vit import ViT, ViTConfig

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
SAMPLES_FOLDER = Path(__file__).parent / "samples"
UNTRAINED_SEED = 2603


@dataclass(frozen=True)
class ZooEntry:
    """One model: architecture, weights (None: untrained, from a fixed seed), and how to read and name things.

    mean and std are per channel, of pixels scaled to [0, 1]. An image is resized so that its shorter side is
    the model's divided by crop_fraction, then cropped at the centre.
    """

    config: ViTConfig
    weights: str | None
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float
    about: str


def _imagenet_sized(variant: str, depth: int, about: str) -> ZooEntry:
    config = ViTConfig(
        variant=variant,
        image_size=(224, 224),
        patch_size=16,
        in_channels=3,
        embed_dim=1024,
        depth=depth,
        num_heads=16,
        mlp_dim=4096,
        num_classes=1000,
    )
    return ZooEntry(
        config=config,
        weights=None,
        class_names=tuple(f"class {index}" for index in range(1000)),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        crop_fraction=0.875,
        about=f"{about}; untrained, for measuring",
    )


def _digits(variant: str, about: str) -> ZooEntry:
    config = ViTConfig(
        variant=variant,
        image_size=(digits.IMAGE_SIDE, digits.IMAGE_SIDE),
        patch_size=digits.CELL_SIDE,
        in_channels=1,
        embed_dim=128,
        depth=4,
        num_heads=4,
        mlp_dim=192,
        num_classes=10,
    )
    return ZooEntry(
        config=config,
        weights=f"digits_{variant}.safetensors",
        class_names=digits.CLASS_NAMES,
        mean=(digits.MEAN,),
        std=(digits.STD,),
        crop_fraction=1.0,
        about=f"{about}; trained to find one handwritten digit among scrambled ones",
    )


ZOO: dict[str, ZooEntry] = {
    "infvit_linear_4l": _imagenet_sized("linear", 4, "InfViT-Linear, 4 layers"),
    "infvit_pure_4l": _imagenet_sized("pure", 4, "InfViT with pure InfSA, 4 layers"),
    "vit_softmax_4l": _imagenet_sized("softmax", 4, "the softmax ViT of the same size, 4 layers"),
    "infvit_linear_24l": _imagenet_sized("linear", 24, "InfViT-Linear, 24 layers"),
    "infvit_pure_24l": _imagenet_sized("pure", 24, "InfViT with pure InfSA, 24 layers"),
    "digits_linear": _digits("linear", "a small InfViT-Linear"),
    "digits_pure": _digits("pure", "a small InfViT with pure InfSA"),
    "digits_softmax": _digits("softmax", "a small softmax ViT"),
}

DEFAULT_MODEL = {"linear": "digits_linear", "pure": "digits_pure", "softmax": "digits_softmax"}


def entry(name: str) -> ZooEntry:
    """The zoo entry of that name; UsageError with the nearest names if there is none."""
    if name in ZOO:
        return ZOO[name]
    near = difflib.get_close_matches(name, ZOO, n=3)
    raise UsageError(
        f"there is no model {name!r} in the zoo",
        f"the models are {', '.join(ZOO)}",
        f"did you mean {' or '.join(near)}?" if near else "",
    )


def build(
    name: str,
    *,
    image_size: tuple[int, int] | None = None,
    hops: Hops | None = None,
    power_iterations: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    key: str | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> ViT:
    """Build a model of the zoo in float32 and eval mode, with its own weights or those of a fitting file.

    Untrained models are drawn from a fixed seed, so the same name always gives the same weights.

    Args: image_size: (height, width) to run at; positions are interpolated.
        hops, power_iterations: of the attention, if not 1.
        key, note: of the weights, see load_weights.
    Raises: UsageError for an unknown name, an impossible size or number; ModelError for unfitting weights.
    """
    chosen = entry(name)
    config = chosen.config
    hops = config.hops if hops is None else hops
    power_iterations = config.power_iterations if power_iterations is None else power_iterations
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(UNTRAINED_SEED)
        model = ViT(replace(config, hops=hops, power_iterations=power_iterations)).eval()
    if weights is None and chosen.weights is not None:
        weights = WEIGHTS_FOLDER / chosen.weights
    if weights is not None:
        load_into(model, weights, key, note=note)
    return model if image_size is None else model.set_image_size(image_size)
