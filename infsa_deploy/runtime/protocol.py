"""What every runtime offers: named inputs and outputs, a call on arrays, and an end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import UsageError

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TensorInfo:
    """A model input or output; an axis is a size, or a name where it is free."""

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


def check_feeds(inputs: tuple[TensorInfo, ...], feeds: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise UsageError unless `feeds` names every input once and each array fits it."""
    names = [info.name for info in inputs]
    if sorted(feeds) != sorted(names):
        raise UsageError(f"inputs {sorted(feeds)} given.", f"the model takes {names}.", "feed each of them once.")
    for info in inputs:
        info.check(feeds[info.name])
