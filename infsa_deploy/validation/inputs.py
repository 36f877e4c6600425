"""The inputs that a model is compared with its reference on, and how they are fed to an artefact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from infsa_models import digits

from infsa_deploy.errors import UsageError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import preprocess
from infsa_deploy.runtime.sessions.protocol import Arrays, ModelSession, TensorInfo

BATCH = 8

Batch = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """How much to compare. The number of images is fixed here, and what may differ follows from it.

    Attributes:
        real, random: images of the digits test set, and of noise.
        seed: of the noise, and of inputs that are no image.
        batch: images at a time.
    """

    real: int = 64
    random: int = 16
    seed: int = 0
    batch: int = BATCH

    def __post_init__(self) -> None:
        if self.real < 0 or self.random < 0 or self.real + self.random == 0:
            raise UsageError("there is nothing to compare.", "no images were asked for.", "ask for at least one.")


def sample_inputs(plan: Plan, spec: ImageSpec, inputs: Sequence[TensorInfo], dtype: str) -> Arrays:
    """All inputs of `plan` in one batch: those with real images, then those with noise."""
    batches = [feeds for kind in inputs_by_kind(plan, spec, inputs, dtype).values() for feeds in kind]
    return {name: np.concatenate([feeds[name] for feeds in batches]) for name in batches[0]}


def inputs_by_kind(
    plan: Plan, spec: ImageSpec, inputs: Sequence[TensorInfo], dtype: str
) -> dict[str, Iterator[Arrays]]:
    """Batches by kind of image; noise is outside the range that int8 is calibrated for, and says nothing of it.

    The image is the input of the rank and the channels that `spec` says; a model without one is fed noise alone.
    """
    image = next((info for info in inputs if _is_image(info, spec)), None)
    counts = {"real": plan.real, "random": 0 if dtype == "int8" else plan.random}
    if image is None:
        counts = {"real": 0, "random": plan.random or plan.real}
    if not any(counts.values()):
        raise UsageError(
            "there is nothing to compare.",
            "int8 is compared on real images, and none were asked for.",
            "ask for real images: --images 8.",
        )
    return {kind: _batches(kind, count, plan, spec, inputs, image) for kind, count in counts.items() if count}


def _is_image(info: TensorInfo, spec: ImageSpec) -> bool:
    return len(info.shape) == 4 and info.shape[1] == spec.channels and "float" in info.dtype


def _batches(
    kind: str, count: int, plan: Plan, spec: ImageSpec, inputs: Sequence[TensorInfo], image: TensorInfo | None
) -> Iterator[Arrays]:
    generator = np.random.default_rng(plan.seed)
    pictures = digits.test_set(count if kind == "real" else 0).images
    for start in range(0, count, plan.batch):
        size = min(plan.batch, count - start)
        feeds: Arrays = {}
        for info in inputs:
            if info is not image:
                feeds[info.name] = _drawn(info, size, generator)
            elif kind == "real":
                chosen = pictures[start : start + size].astype(np.float32)[..., None] / 255
                feeds[info.name] = np.concatenate([preprocess(picture, spec) for picture in chosen])
            else:
                shape = (size, spec.channels, spec.height, spec.width)
                feeds[info.name] = generator.standard_normal(shape, dtype=np.float32)
        yield feeds


def _drawn(info: TensorInfo, size: int, generator: np.random.Generator) -> npt.NDArray[np.generic]:
    """An input that is no image: standard normal numbers; integers and truth values are 0 or 1, which any index is.

    Raises: UsageError where an axis beside the first is free.
    """
    free = [axis for axis in info.shape[1:] if not isinstance(axis, int)]
    if free:
        raise UsageError(
            f"input {info.name!r} has free axes {', '.join(map(str, free))}.",
            "only the sides of an image may be free where inputs are drawn.",
            "export the model with a fixed size.",
        )
    shape = (size, *(axis for axis in info.shape[1:] if isinstance(axis, int)))
    if "float" in info.dtype:
        return generator.standard_normal(shape, dtype=np.float32)
    return generator.integers(0, 2, shape).astype(info.dtype)


def call_in_batches(session: ModelSession, feeds: Arrays) -> Arrays:
    """Run a model on any number of inputs, in as many calls as its fixed batch or its `max_batch` demands.

    A call of a model of a fixed batch gets the last input again for what lacks.
    """
    count = len(next(iter(feeds.values())))
    sizes = {info.shape[0] for info in session.inputs if info.shape}
    fixed = next((size for size in sizes if isinstance(size, int)), None)
    size = fixed or session.max_batch or count
    pieces = []
    for start in range(0, count, size):
        kept = min(size, count - start)
        indices = np.minimum(np.arange(start, start + (fixed or kept)), count - 1)
        types = {info.name: np.dtype(info.dtype) for info in session.inputs}
        found = session({name: array[indices].astype(types[name], copy=False) for name, array in feeds.items()})
        pieces.append({name: array[:kept] if len(indices) != kept else array for name, array in found.items()})
    return {
        name: np.concatenate([piece[name] for piece in pieces]) if len(pieces) > 1 else pieces[0][name]
        for name in pieces[0]
    }
