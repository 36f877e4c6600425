"""Pictures of every form as rows of values in [0, 1], so that a large one need not lie in memory as floats.

Any bit depth, colour space and orientation. Arrays in files are mapped, large TIFF files are decoded strip by strip or
tile by tile where tifffile is installed; every other picture is decoded whole, in its own type.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from infsa_deploy.errors import DeployError, ModelError
from infsa_deploy.runtime.pictures.limit import check_pixels, check_windowed
from infsa_deploy.runtime.pictures.tiff import open_tiff

Pixels = npt.NDArray[np.float32]
Picture = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any]

ORIENTATION_TAG, QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # EXIF: values that swap height and width
WHITE = (255, 255, 255, 255)
WIDE_MODES = ("I", "I;16", "I;16B", "I;16L")
SMALL_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}  # bytes that Pillow stores a pixel in; else 4
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "JPEG2000", "AVIF")  # as Pillow calls them
PREFIX = 16  # bytes that tell a format
WINDOWS_FROM = 1 << 22  # pixels from which a TIFF file is decoded part by part


class Rows(Protocol):
    """A picture that is read in parts; `shape` is (height, width) or (height, width, channels)."""

    shape: tuple[int, ...]

    def rows(self, top: int, bottom: int) -> Pixels:
        """The rows from `top` to before `bottom`, [rows, W, C] float32 in [0, 1], C = 1 or 3."""


@contextmanager
def open_rows(
    picture: Picture,
    name: str = "the image",
    *,
    max_pixels: int | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Iterator[Rows]:
    """A picture as rows, for the length of the block; of a file only the header is read until rows are asked for.

    Args:
        picture: as read_image.
        name: what errors call a picture that is no file.
        max_pixels: the most pixels it may have; default: what can be decoded in half of the memory that is free.
        note: told what is left out: all frames of an animation but the first.

    Raises: as read_image, inside the block too.
    """
    if isinstance(picture, str | os.PathLike):
        path = Path(picture)
        _check_file(path)
        name = str(path)
        picture = _mapped(path) if path.suffix == ".npy" else path
    with ExitStack() as stack:
        if isinstance(picture, np.ndarray):
            yield ArrayRows(picture, name)
            return
        image = picture if isinstance(picture, Image.Image) else stack.enter_context(_opened(picture, name))
        opened = _tiff(picture, image, name, stack) if isinstance(picture, Path | bytes) else None
        if opened is None:
            check_pixels(name, image.size, SMALL_MODES.get(image.mode, 4), max_pixels, image.format)
        else:
            check_windowed(name, image.size, opened.block_bytes, max_pixels)
        if getattr(image, "is_animated", False):
            note(f"{name} has {getattr(image, 'n_frames', 'several')} frames or pages: the first is used.")
        yield ArrayRows(opened, name) if opened else PillowRows(image, name)


class ArrayRows:
    """Rows of an array [H, W] or [H, W, 1|3], or of what can be cut as one; ModelError if it is no image."""

    def __init__(self, array: Any, name: str) -> None:
        self._array, self._name = array, name
        self._full_scale = _full_scale(array, name)
        self.shape: tuple[int, ...] = tuple(array.shape)

    def rows(self, top: int, bottom: int) -> Pixels:
        return _to_unit(self._array[top:bottom], self._full_scale, self._name)


class PillowRows:
    """Rows of a Pillow image: upright, transparency on white, CMYK and palettes as RGB."""

    def __init__(self, image: Image.Image, name: str) -> None:
        self._image, self._name = image, name
        self._turn = image.getexif().get(ORIENTATION_TAG, 1)
        width, height = image.size
        self.shape: tuple[int, ...] = (width, height) if self._turn in QUARTER_TURNS else (height, width)

    def rows(self, top: int, bottom: int) -> Pixels:
        self._image.load()
        if self._turn != 1:
            self._image, self._turn = ImageOps.exif_transpose(self._image), 1
        height, width = self.shape[:2]
        whole = (top, bottom) == (0, height)
        return _picture_to_unit(self._image if whole else self._image.crop((0, top, width, bottom)), self._name)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ModelError(f"{path} is a folder.", "a picture is a file.", "name the pictures in it.")
    if not path.is_file():
        raise ModelError(f"{path} does not exist.", "", "check the path of the image.")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty.", "the file has no bytes.", "copy the image again.")


@contextmanager
def _opened(file: Path | bytes, name: str) -> Iterator[Image.Image]:
    """Open an image file or its bytes; whatever its decoder raises becomes a ModelError."""
    try:
        with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as stream:
            yield _identified(stream)
    except (DeployError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise ModelError(
            f"{name} is no image.", "no decoder knows its format.", "give PNG, JPEG, TIFF or .npy."
        ) from error
    except Exception as error:  # a decoder may raise anything on a damaged image
        fix = "copy or convert the image again."
        raise ModelError(f"{name} is a damaged image.", str(error), fix) from error


def _identified(stream: BinaryIO) -> Image.Image:
    """Image.open without its limit, which belongs to the process, and without formats that start other programs."""
    prefix = stream.read(PREFIX)
    Image.init()
    for kind in filter(Image.OPEN.get, FORMATS):
        make, accepts = Image.OPEN[kind]
        try:
            accepted = accepts is None or accepts(prefix)
            if accepted and not isinstance(accepted, str):  # a text tells why this Pillow cannot read the format
                stream.seek(0)
                return make(stream, "")
        except (SyntaxError, IndexError, TypeError, struct.error):  # what a plugin says to a file of another format
            continue
    raise UnidentifiedImageError


def _tiff(file: Path | bytes, image: Image.Image, name: str, stack: ExitStack) -> Any:
    if image.format != "TIFF" or image.size[0] * image.size[1] < WINDOWS_FROM:
        return None
    if image.mode not in ("L", "RGB", "I;16", "I;16B", "F") or image.getexif().get(ORIENTATION_TAG, 1) != 1:
        return None
    return open_tiff(file, stack)


def _picture_to_unit(image: Image.Image, name: str) -> Pixels:
    if image.mode in WIDE_MODES:
        return _to_unit(np.asarray(image), 65535, name)
    if image.mode == "F":
        return _to_unit(np.asarray(image), 1, name)
    if image.mode in ("1", "L"):
        return _to_unit(np.asarray(image.convert("L")), 255, name)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, WHITE), rgba)
    return _to_unit(np.asarray(image.convert("RGB")), 255, name)


def _full_scale(array: Any, name: str) -> int:
    """The value of an array's type that stands for 1; ModelError for an array that is no image."""
    full_scale = {"uint8": 255, "uint16": 65535}.get(array.dtype.name, 1)
    shape = array.shape
    if full_scale == 1 and array.dtype.kind != "f":
        raise ModelError(f"{name} holds {array.dtype}.", "", "give uint8, uint16, or floats in [0, 1].")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)) or 0 in shape:
        raise ModelError(f"{name} has shape {list(shape)}.", "", "give [H, W], [H, W, 1] or [H, W, 3].")
    return full_scale


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        array = np.load(path, "r", allow_pickle=False)
    except MemoryError:
        raise
    except Exception as error:  # so may the parser of the file's header
        raise ModelError(f"{path} is no NumPy array file.", str(error), "save it with numpy.save.") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ModelError(f"{path} is no NumPy array file.", "it is an archive of them.", "save it with numpy.save.")
    return array


def _to_unit(values: npt.NDArray[Any], full_scale: int, name: str) -> Pixels:
    pixels: Pixels = np.divide(values, np.float32(full_scale), dtype=np.float32)
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):  # false for NaN
        raise ModelError(
            f"{name} has values outside its range.",
            f"after division by {full_scale} they run from {low:g} to {high:g}, not within 0 to 1.",
            "rescale the image to [0, 1] or to the full range of its type.",
        )
    return pixels if pixels.ndim == 3 else pixels[:, :, None]
