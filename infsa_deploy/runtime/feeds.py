"""Files to arrays by input name: pictures for the image, .npy and .npz for whatever else a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.sessions.protocol import Arrays, TensorInfo

ARCHIVE = ".npz"


def image_input(inputs: Sequence[TensorInfo], spec: ImageSpec) -> TensorInfo | None:
    """The input that pictures become: the first [batch, channels, height, width] of the image's channels and size."""
    wanted = (spec.channels, spec.height, spec.width)
    for info in inputs:
        if len(info.shape) == 4 and "float" in info.dtype:
            axes = zip(info.shape[1:], wanted, strict=True)
            if all(not isinstance(axis, int) or axis == size for axis, size in axes):
                return info
    return None


def split_by_name(files: Sequence[Path], inputs: Sequence[TensorInfo]) -> tuple[list[tuple[str, Path]], list[Path]]:
    """Files that say which input they are for, and the pictures.

    `NAME=FILE` says it, and so do the names within a .npz and a .npy that is called as an input is.
    """
    names = {info.name for info in inputs}
    named: list[tuple[str, Path]] = []
    pictures: list[Path] = []
    for file in files:
        name, equals, rest = str(file).partition("=")
        if equals and name in names:
            named.append((name, Path(rest)))
        elif file.suffix == ARCHIVE:
            named += [(name, file) for name in _archived(file)]
        elif file.suffix == ".npy" and file.stem in names:
            named.append((file.stem, file))
        else:
            pictures.append(file)
    return named, pictures


def read_feeds(
    files: Sequence[Path],
    inputs: Sequence[TensorInfo],
    spec: ImageSpec,
    preprocess: Callable[[Path], npt.NDArray[Any]],
) -> Arrays:
    """The arrays that `files` hold for the inputs, see split_by_name; pictures together are the batch of the image.

    Args:
        spec: what pictures become.
        preprocess: a picture file to [1, C, H, W].

    Raises:
        ModelError: a file cannot be read.
        UsageError: an input is fed twice or by no file, pictures come where no input takes them, or an array does not
            have the type of its input and cannot be converted without loss of meaning.
    """
    image, known = image_input(inputs, spec), {info.name: info for info in inputs}
    named, pictures = split_by_name(files, inputs)
    if pictures and image is None:
        raise UsageError(f"{pictures[0]} cannot be fed to this model.", f"it takes {spell(inputs)}.", _how(inputs))
    fed = {name for name, _ in named} | ({image.name} if pictures and image else set())
    if missing := [info for info in inputs if info.name not in fed]:
        what = f"nothing was given for {spell(missing)}."
        raise UsageError(what, f"the model has {len(inputs)} inputs: {spell(inputs)}.", _how(missing))
    feeds: Arrays = {}
    for name, file in named:
        if name in feeds or name not in known:
            why = "it is fed twice." if name in feeds else f"the model takes {spell(inputs)}."
            raise UsageError(f"{file} feeds the input {name!r}.", why, "feed each input once, by its name.")
        if image is not None and name == image.name and file.suffix not in (".npy", ARCHIVE):
            feeds[name] = preprocess(file)
        else:
            feeds[name] = _converted(_array(file, name), known[name], file)
    if pictures and image is not None and image.name not in feeds:
        feeds[image.name] = _batch(pictures, preprocess)
    elif pictures:
        raise UsageError(f"{pictures[0]} is for no input.", "the image is fed by another file.", _how(inputs))
    return feeds


def spell(infos: Sequence[TensorInfo]) -> str:
    """Names, types and shapes in one line: `image float32 [batch, 3, 32, 32], mask bool [batch, 16]`."""
    return ", ".join(f"{info.name} {info.dtype} [{', '.join(map(str, info.shape))}]" for info in infos)


def _how(inputs: Sequence[TensorInfo]) -> str:
    given = " ".join(f"{info.name}={info.name}.npy" for info in inputs)
    return f"write {given}, or give one .npz with these names (numpy.savez)."


def _batch(pictures: Sequence[Path], preprocess: Callable[[Path], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    arrays = [preprocess(picture) for picture in pictures]
    sizes = {array.shape[1:] for array in arrays}
    if len(sizes) > 1:
        listed = " and ".join("x".join(map(str, size[1:])) for size in sorted(sizes))
        raise UsageError(
            "the pictures are of several sizes.", f"they become {listed}.", "give those of one size together."
        )
    return np.concatenate(arrays)


def _archived(file: Path) -> list[str]:
    with _opened(file) as archive:
        return list(archive)


def _array(file: Path, name: str) -> npt.NDArray[Any]:
    if file.suffix != ARCHIVE:
        found: npt.NDArray[Any] = _opened(file)
        return found
    with _opened(file) as archive:
        try:
            inner: npt.NDArray[Any] = archive[name]
        except ValueError as error:  # an array of objects, which would be a pickle
            raise ModelError(f"{name} in {file} is no array of numbers.", str(error), "save numbers.") from error
        return inner


def _opened(file: Path) -> Any:
    if not file.is_file():
        raise ModelError(f"{file} does not exist.", "", "check the path of the array.")
    try:
        loaded = np.load(file, allow_pickle=False)
    except Exception as error:  # the parsers of zip files and of headers may raise anything
        fix = "save it with numpy.save or numpy.savez."
        raise ModelError(f"{file} is no NumPy file.", str(error) or type(error).__name__, fix) from error
    if (file.suffix == ARCHIVE) != isinstance(loaded, Mapping):
        raise ModelError(f"{file} is not what its name says.", "", "name archives .npz and single arrays .npy.")
    return loaded


def _converted(array: npt.NDArray[Any], info: TensorInfo, file: Path) -> npt.NDArray[Any]:
    """The array in the type of its input: any numbers become floating ones, integers other integers that hold them."""
    wanted = np.dtype(info.dtype)
    floating = "float" in info.dtype and array.dtype.kind in "fiub"
    if not floating and not np.array_equal(array.astype(wanted, copy=False), array):
        why = f"it is {array.dtype}, and the input {info.name!r} is {info.dtype}."
        raise UsageError(f"{file} does not fit the model.", why, f"save it as {info.dtype}.")
    return array.astype(wanted, copy=False)
