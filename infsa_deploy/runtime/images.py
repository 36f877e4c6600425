"""From a picture (a file, its bytes, a Pillow image, an array) to the array a model takes.

Any bit depth, colour space and orientation: values are taken to [0, 1] before anything is resampled, so that a
16-bit image loses nothing, and the resampling (bicubic, antialiased) is done in float32.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from infsa_deploy.errors import ModelError
from infsa_deploy.records import ImageSpec

Pixels = npt.NDArray[np.float32]
Picture = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any]

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as Pillow's own conversion to grey
ORIENTATION_TAG, QUARTER_TURNS = 0x0112, (5, 6, 7, 8)  # EXIF: values that swap height and width
WHITE = (255, 255, 255, 255)
WIDE_MODES = ("I", "I;16", "I;16B", "I;16L")


def read_image(picture: Picture, name: str = "the image") -> Pixels:
    """Decode a picture to [H, W, C] float32 in [0, 1], C = 1 or 3.

    EXIF orientation is applied, transparency is laid on white, CMYK and palettes become RGB.

    Args:
        picture: the path of a PNG, JPEG, TIFF or `.npy` file, the bytes of a PNG, JPEG or TIFF file, a Pillow image,
            or an array [H, W] or [H, W, 1|3] of uint8, uint16 (full range) or floats in [0, 1]; a `.npy` file likewise.
        name: what errors call a picture that is no file.

    Raises:
        ModelError: the file is missing, empty or truncated, or the picture is no image.
    """
    if isinstance(picture, np.ndarray):
        return _array_to_unit(picture, name)
    if isinstance(picture, Image.Image):
        return _picture_to_unit(ImageOps.exif_transpose(picture), name)
    if isinstance(picture, bytes):
        return _read_picture(picture, name)
    path = Path(picture)
    _check_file(path)
    return _array_to_unit(_load_array(path), str(path)) if path.suffix == ".npy" else _read_picture(path, str(path))


def preprocess(pixels: Pixels, spec: ImageSpec) -> Pixels:
    """Scale, crop, and normalise [H, W, C] in [0, 1] to [1, channels, height, width] as `spec` says."""
    pixels = _with_channels(pixels, spec.channels)
    fitted = _cover_and_crop(pixels, at_own_size(pixels.shape, spec))
    planes = np.empty((1, spec.channels, *fitted.shape[:2]), np.float32)
    for channel, (mean, std) in enumerate(zip(spec.mean, spec.std, strict=True)):  # a plane of temporaries at a time
        planes[0, channel] = (fitted[:, :, channel] - np.float32(mean)) / np.float32(std)
    return planes


def picture_shape(picture: Picture, name: str = "the image") -> tuple[int, ...]:
    """(height, width, ...) of a picture, from its header alone where the format has one; raises as read_image."""
    if isinstance(picture, np.ndarray):
        _full_scale(picture, name)
        return picture.shape
    if isinstance(picture, Image.Image):
        return _upright_shape(picture)
    if isinstance(picture, bytes):
        with _opened(picture, name) as image:
            return _upright_shape(image)
    path = Path(picture)
    _check_file(path)
    if path.suffix == ".npy":
        return picture_shape(_load_array(path, mmap_mode="r"), str(path))
    with _opened(path, str(path)) as image:
        return _upright_shape(image)


def at_own_size(shape: Sequence[int], spec: ImageSpec) -> ImageSpec:
    """`spec` for a picture [H, W, ...]: as it is, or, for a model of any size, the nearest size that it takes."""
    if spec.multiple_of is None:
        return spec
    height, width = (max(1, round(side / spec.multiple_of)) * spec.multiple_of for side in shape[:2])
    return replace(spec, height=height, width=width)


def crop_box(height: int, width: int, spec: ImageSpec) -> tuple[float, float, float, float]:
    """The part of a picture that the model sees: left, top, right, bottom in its pixels.

    Centred, of the model's proportions, and as large as the picture allows, times crop_fraction.
    """
    scale = max(spec.height / height, spec.width / width) / spec.crop_fraction
    box_height, box_width = min(height, spec.height / scale), min(width, spec.width / scale)
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, left + box_width, top + box_height


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"{path} does not exist.", "", "check the path of the image.")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty.", "the file has no bytes.", "copy the image again.")


def _read_picture(file: Path | bytes, name: str) -> Pixels:
    with _opened(file, name) as image:
        image.load()
        return _picture_to_unit(ImageOps.exif_transpose(image), name)


def _upright_shape(image: Image.Image) -> tuple[int, int]:
    turned = image.getexif().get(ORIENTATION_TAG, 1) in QUARTER_TURNS
    return image.size if turned else image.size[::-1]


@contextmanager
def _opened(file: Path | bytes, name: str) -> Iterator[Image.Image]:
    """Open an image file or its bytes; whatever its decoder raises becomes a ModelError."""
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            yield image
    except (ModelError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise ModelError(
            f"{name} is no image.", "no decoder knows its format.", "give PNG, JPEG, TIFF or .npy."
        ) from error
    except Image.DecompressionBombError as error:
        raise ModelError(
            f"{name} is too large to decode safely.", str(error), "save it as .npy, or cut it up."
        ) from error
    except Exception as error:  # a decoder may raise anything on a damaged image
        fix = "copy or convert the image again."
        raise ModelError(f"{name} is a damaged image.", str(error), fix) from error


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


def _array_to_unit(array: npt.NDArray[Any], name: str) -> Pixels:
    return _to_unit(array, _full_scale(array, name), name)


def _full_scale(array: npt.NDArray[Any], name: str) -> int:
    """The value of an array's type that stands for 1; ModelError for an array that is no image."""
    full_scale = {"uint8": 255, "uint16": 65535}.get(str(array.dtype), 1)
    if full_scale == 1 and array.dtype.kind != "f":
        raise ModelError(f"{name} holds {array.dtype}.", "", "give uint8, uint16, or floats in [0, 1].")
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)) or 0 in array.shape:
        raise ModelError(f"{name} has shape {list(array.shape)}.", "", "give [H, W], [H, W, 1] or [H, W, 3].")
    return full_scale


def _load_array(path: Path, mmap_mode: Literal["r"] | None = None) -> npt.NDArray[Any]:
    try:
        array = np.load(path, mmap_mode, allow_pickle=False)
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
    if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
        raise ModelError(
            f"{name} has values outside its range.",
            f"after division by {full_scale} they run from {pixels.min():g} to {pixels.max():g}, not within 0 to 1.",
            "rescale the image to [0, 1] or to the full range of its type.",
        )
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    present = pixels.shape[2]
    if present == channels:
        return pixels
    if channels == 1:
        return np.asarray(pixels @ LUMA, np.float32)[:, :, None]
    if present != 1:
        fix = "feed the model arrays of its own input instead of pictures."
        raise ModelError(f"the picture has {present} channels.", f"the model takes {channels}.", fix)
    return np.repeat(pixels, channels, axis=2)


def _cover_and_crop(pixels: Pixels, spec: ImageSpec) -> Pixels:
    height, width, _ = pixels.shape
    box = crop_box(height, width, spec)
    if box == (0, 0, width, height) and (height, width) == (spec.height, spec.width):
        return pixels
    return np.stack([_resample(pixels[:, :, c], spec, box) for c in range(pixels.shape[2])], axis=2)


def _resample(plane: Pixels, spec: ImageSpec, box: tuple[float, float, float, float]) -> Pixels:
    image = Image.fromarray(np.ascontiguousarray(plane))
    resized = image.resize((spec.width, spec.height), Image.Resampling.BICUBIC, box)
    return np.asarray(resized, dtype=np.float32).clip(0, 1)
