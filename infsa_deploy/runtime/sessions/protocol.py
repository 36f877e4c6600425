"""What every runtime offers: named inputs and outputs, a call on arrays, and an end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes  # noqa: F401 - from then on NumPy has a bfloat16
import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import UsageError
from infsa_deploy.records.model import ModelMetadata

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TensorInfo:
    """A model input or output; an axis is a size, or a name where it is free; `dtype` is NumPy's name or `bfloat16`."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def check(self, array: npt.NDArray[Any]) -> None:
        """Raise UsageError unless `array` has the type, the rank and every fixed size."""
        fits = array.ndim == len(self.shape) and all(
            not isinstance(size, int) or size == actual for size, actual in zip(self.shape, array.shape, strict=True)
        )
        if not fits or array.dtype != np.dtype(self.dtype):
            raise UsageError(
                f"input {self.name!r} is {array.dtype} {list(array.shape)}.",
                f"the model takes {self.dtype} {list(self.shape)}.",
                "preprocess the image to that shape, or export the model for this one.",
            )


class Session(Protocol):
    """A loaded model. `dtype` is the type of its weights: fp32, fp16, bf16."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    runtime: str

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run once: arrays by input name in, arrays by output name out."""

    def close(self) -> None:
        """Free what the session holds; calling it afterwards is an error."""


class ModelSession(Session, Protocol):
    """A loaded model that says what it is.

    Attributes:
        max_batch: the most images a call may have, None for any number.
        on_host: whether activations lie in the host's memory.
        reentrant: whether several threads may call it at once.
    """

    metadata: ModelMetadata
    max_batch: int | None
    on_host: bool
    reentrant: bool

    def fork(self) -> ModelSession:
        """Another session over the same weights, for another thread; the same one where that is safe."""


def call_in_pieces(session: ModelSession, images: npt.NDArray[Any]) -> Arrays:
    """Run [B, ...] images on a model of one input, in as many calls as its fixed batch or its `max_batch` demands.

    Raises: UsageError for a model of several inputs, or for several calls where an output has no row an image.
    """
    check_one_input(session.inputs)
    if not len(images):
        return call_empty(session, {session.inputs[0].name: images})
    fixed = session.inputs[0].shape[0]
    size = fixed if isinstance(fixed, int) else session.max_batch or len(images)
    pieces = [call_padded(session, images[start : start + size]) for start in range(0, len(images), size)]
    if len(pieces) == 1:
        return pieces[0]
    for name, array in pieces[0].items():
        if array.ndim == 0 or len(array) != size:
            raise UsageError(
                f"{len(images)} images take {len(pieces)} calls, and output {name!r} cannot be joined.",
                f"it has no row an image: a call of {size} gave {list(array.shape)}.",
                f"give at most {size} images at a time.",
            )
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def call_empty(session: ModelSession, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """No image in, no row out, of the shape and type that the outputs have: runtimes take no batch of 0.

    Feeds are checked like any other, but for their first axis. The model runs once, on zeros.
    """
    batch = session.inputs[0].shape[:1]
    count = batch[0] if batch and isinstance(batch[0], int) else session.max_batch or 1
    filled = {
        name: np.zeros((count, *array.shape[1:]), array.dtype) if array.shape[:1] == (0,) else array
        for name, array in feeds.items()
    }
    return {name: array[:0] if array.shape[:1] == (count,) else array for name, array in session(filled).items()}


def check_numbers(feeds: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise UsageError for an array with a NaN in it, which would make every answer NaN."""
    for name, array in feeds.items():
        if array.size and array.dtype.kind in "fV" and np.isnan(array.min()):  # V: bfloat16, for NumPy
            raise UsageError(f"input {name!r} holds NaN.", "no answer can follow from it.", "mend the array.")


def call_padded(session: Session, images: npt.NDArray[Any]) -> Arrays:
    """Run [B, ...] images on a model of one input; one of a fixed batch gets the last image again for what lacks."""
    check_one_input(session.inputs)
    image_input = session.inputs[0]
    count, fixed = len(images), image_input.shape[0]
    missing = fixed - count if isinstance(fixed, int) else 0
    fed = np.concatenate([images, np.repeat(images[-1:], missing, axis=0)]) if missing else images
    found = session({image_input.name: fed.astype(image_input.dtype, copy=False)})
    return {name: array[:count] if array.shape[:1] == fed.shape[:1] else array for name, array in found.items()}


def check_one_input(inputs: tuple[TensorInfo, ...]) -> None:
    """Raise UsageError unless the model has one input with a batch axis, so that images alone can feed it."""
    if len(inputs) == 1 and inputs[0].shape:
        return
    listed = ", ".join(f"{info.name} {list(info.shape)}" for info in inputs)
    raise UsageError(
        "images alone cannot feed this model.",
        f"its inputs are {listed}.",
        f"call it with an array for each: model({{{', '.join(f'{info.name!r}: ...' for info in inputs)}}})",
    )


def check_feeds(inputs: tuple[TensorInfo, ...], feeds: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise UsageError unless `feeds` names every input once, each array fits it, and axes of one name agree."""
    check_names(inputs, feeds)
    sizes: dict[str, tuple[int, str]] = {}
    for info in inputs:
        info.check(feeds[info.name])
        for axis, size in zip(info.shape, feeds[info.name].shape, strict=True):
            if isinstance(axis, str) and axis.isidentifier() and sizes.setdefault(axis, (size, info.name))[0] != size:
                other, name = sizes[axis]
                raise UsageError(
                    f"inputs {name!r} and {info.name!r} do not go together.",
                    f"their axis {axis!r} is {other} in one and {size} in the other.",
                    "give both the same size.",
                )


def check_names(inputs: tuple[TensorInfo, ...], given: Iterable[str]) -> None:
    """Raise UsageError unless `given` names every input once."""
    names = [info.name for info in inputs]
    if sorted(given) != sorted(names):
        raise UsageError(f"inputs {sorted(given)} given.", f"the model takes {names}.", "feed each of them once.")
