"""What a model returned: which output is logits, what the others hold, and all of it in a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import UsageError
from infsa_deploy.files import check_target, written_whole
from infsa_deploy.records.model import OutputSummary
from infsa_deploy.runtime.feeds import image_input, spell
from infsa_deploy.runtime.sessions.protocol import ModelSession, TensorInfo

LOGITS = "logits"


def has_logits(outputs: Sequence[TensorInfo], classes: Sequence[str]) -> bool:
    """Whether one of the outputs is logits [batch, classes], with a name for each class."""
    return any(
        info.name == LOGITS and len(info.shape) == 2 and info.shape[1] in (len(classes), "classes") and bool(classes)
        for info in outputs
    )


def classifies(session: ModelSession) -> bool:
    """Whether a picture is all that the model takes, and logits are among what it returns."""
    image = image_input(session.inputs, session.metadata.image)
    return image is not None and len(session.inputs) == 1 and has_logits(session.outputs, session.metadata.classes)


def check_classifies(name: str, session: ModelSession) -> None:
    """Raise UsageError unless the model, whose name the error gives, classifies pictures."""
    if not classifies(session):
        raise UsageError(
            f"{name} does not classify pictures.",
            f"it takes {spell(session.inputs)} and returns {spell(session.outputs)}.",
            "call it with arrays: infsa_deploy.load(path)({name: array, ...}), infsa-deploy run.",
        )


def summarise(arrays: Mapping[str, npt.NDArray[Any]]) -> list[OutputSummary]:
    """A line on each output, over all its numbers that are finite."""
    return [_summary(name, array) for name, array in arrays.items()]


def write_npz(arrays: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    """Write the arrays by name, whole or not at all; bfloat16, which NumPy's files do not know, as float32.

    Raises: UsageError for a name that does not end in .npz; else as written_whole.
    """
    check_archive_name(path)
    with written_whole(path) as scratch, zipfile.ZipFile(scratch, "w") as archive:  # numpy.savez reserves a name
        for name, array in arrays.items():
            known = array.astype(np.float32) if array.dtype == np.dtype("bfloat16") else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(known, order="C"), allow_pickle=False)


def check_archive_name(path: Path) -> None:
    """Raise UsageError unless outputs can be written to `path`: worth asking before the run."""
    if path.suffix != ".npz":
        raise UsageError(f"cannot write {path}.", "outputs are written as .npz.", f"write -o {path}.npz")
    check_target(path)


def _summary(name: str, array: npt.NDArray[Any]) -> OutputSummary:
    numbers = array.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    some = finite.size > 0
    return OutputSummary(
        name=name,
        shape=array.shape,
        dtype=str(array.dtype),
        minimum=float(finite.min()) if some else None,
        maximum=float(finite.max()) if some else None,
        mean=float(finite.mean()) if some else None,
        not_finite=int(numbers.size - finite.size),
    )
