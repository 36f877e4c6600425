"""The images that a model is compared with its reference on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from infsa_models import digits

from infsa_deploy.errors import UsageError
from infsa_deploy.records import ImageSpec
from infsa_deploy.runtime.images import preprocess

BATCH = 8

Batch = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """How much to compare.

    Attributes:
        real, random: images of the digits test set, and of noise.
        seed: of the noise.
        batch: images at a time.
        again: a kind of images on which the model fails is compared once more, on so many.
    """

    real: int = 32
    random: int = 8
    seed: int = 0
    batch: int = BATCH
    again: int = 64

    def __post_init__(self) -> None:
        if self.real < 0 or self.random < 0 or self.real + self.random == 0:
            raise UsageError("there is nothing to compare.", "no images were asked for.", "ask for at least one.")


def sample_images(plan: Plan, spec: ImageSpec, dtype: str) -> Batch:
    """All images of `plan` in one batch, preprocessed as `spec` says: the real ones, then the noise."""
    return np.concatenate([batch for batches in inputs_by_kind(plan, spec, dtype).values() for batch in batches])


def inputs_by_kind(plan: Plan, spec: ImageSpec, dtype: str) -> dict[str, Iterator[Batch]]:
    """Batches by kind; noise is outside the range that int8 is calibrated for, and says nothing of it."""
    counts = {"real": plan.real, "random": 0 if dtype == "int8" else plan.random}
    if not any(counts.values()):
        raise UsageError(
            "there is nothing to compare.",
            "int8 is compared on real images, and none were asked for.",
            "add --images 8.",
        )
    batches = {"real": _real(spec, plan), "random": _random(spec, plan)}
    return {kind: batches[kind] for kind, count in counts.items() if count}


def _real(spec: ImageSpec, plan: Plan) -> Iterator[Batch]:
    """Pictures of the digits test set, read as a picture file of any size would be."""
    pictures = digits.test_set(plan.real).images
    for start in range(0, plan.real, plan.batch):
        chosen = pictures[start : start + plan.batch].astype(np.float32)[..., None] / 255
        yield np.concatenate([preprocess(picture, spec) for picture in chosen])


def _random(spec: ImageSpec, plan: Plan) -> Iterator[Batch]:
    """Standard normal noise, which a normalised picture resembles in scale and nothing else."""
    generator = np.random.default_rng(plan.seed)
    for start in range(0, plan.random, plan.batch):
        shape = (min(plan.batch, plan.random - start), spec.channels, spec.height, spec.width)
        yield generator.standard_normal(shape, dtype=np.float32)
