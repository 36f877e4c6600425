"""From a picture (a file, its bytes, a Pillow image, an array) to the array a model takes.

Values are taken to [0, 1] before anything is resampled, so that a 16-bit image loses nothing, and the resampling
(bicubic, antialiased) is done in float32. All of it goes by bands of rows: beside the result and what its decoder
holds, a large picture takes little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from infsa_deploy.errors import ModelError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.rows import ArrayRows, Rows, open_rows
from infsa_deploy.runtime.pictures.rows import Picture as Picture
from infsa_deploy.runtime.pictures.rows import Pixels as Pixels

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as Pillow's own conversion to grey
BAND_PIXELS = 1 << 18

Box = tuple[float, float, float, float]


def read_image(picture: Picture, name: str = "the image", *, max_pixels: int | None = None) -> Pixels:
    """Decode a picture to [H, W, C] float32 in [0, 1], C = 1 or 3.

    EXIF orientation is applied, transparency is laid on white, CMYK and palettes become RGB.

    Args:
        picture: the path of a PNG, JPEG, TIFF or `.npy` file, the bytes of a PNG, JPEG or TIFF file, a Pillow image,
            or an array [H, W] or [H, W, 1|3] of uint8, uint16 (full range) or floats in [0, 1]; a `.npy` file likewise.
        name: what errors call a picture that is no file.
        max_pixels: the most pixels it may have; default: what can be decoded in half of the memory that is free.

    Raises:
        ModelError: the file is missing, empty or truncated, or the picture is no image, or too large.
    """
    with open_rows(picture, name, max_pixels=max_pixels) as source:
        return source.rows(0, source.shape[0])


def preprocess(pixels: Pixels, spec: ImageSpec) -> Pixels:
    """Scale, crop, and normalise [H, W, C] in [0, 1] to [1, channels, height, width] as `spec` says."""
    return _fitted(ArrayRows(pixels, "the image"), spec)


def prepare(
    picture: Picture,
    spec: ImageSpec,
    name: str = "the image",
    *,
    max_pixels: int | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Pixels:
    """Read a picture and preprocess it, to the same values as `preprocess(read_image(picture), spec)`, in less memory.

    Args: as open_rows.
    Raises: as read_image.
    """
    with open_rows(picture, name, max_pixels=max_pixels, note=note) as source:
        return _fitted(source, spec)


def picture_shape(picture: Picture, name: str = "the image", *, max_pixels: int | None = None) -> tuple[int, ...]:
    """(height, width, ...) of a picture, from its header alone where the format has one; raises as read_image."""
    with open_rows(picture, name, max_pixels=max_pixels) as source:
        return source.shape


def at_own_size(shape: Sequence[int], spec: ImageSpec) -> ImageSpec:
    """`spec` for a picture [H, W, ...]: as it is, or, for a model of any size, the nearest size that it takes."""
    if spec.multiple_of is None:
        return spec
    height, width = (max(1, round(side / spec.multiple_of)) * spec.multiple_of for side in shape[:2])
    return replace(spec, height=height, width=width)


def crop_box(height: int, width: int, spec: ImageSpec) -> Box:
    """The part of a picture that the model sees: left, top, right, bottom in its pixels.

    Centred, of the model's proportions, and as large as the picture allows, times crop_fraction.
    """
    scale = max(spec.height / height, spec.width / width) / spec.crop_fraction
    box_height, box_width = min(height, spec.height / scale), min(width, spec.width / scale)
    left, top = (width - box_width) / 2, (height - box_height) / 2
    return left, top, left + box_width, top + box_height


def _fitted(source: Rows, spec: ImageSpec) -> Pixels:
    spec = at_own_size(source.shape, spec)
    height, width = source.shape[:2]
    box = crop_box(height, width, spec)
    planes = np.empty((1, spec.channels, spec.height, spec.width), np.float32)
    if box == (0, 0, width, height) and (height, width) == (spec.height, spec.width):
        for top, band in _bands(source, spec.channels):
            planes[0, :, top : top + len(band)] = band.transpose(2, 0, 1)
    else:
        _resample(source, box, planes[0])
    for plane, mean, std in zip(planes[0], spec.mean, spec.std, strict=True):
        plane -= np.float32(mean)
        plane /= np.float32(std)
    return planes


def _bands(source: Rows, channels: int) -> Iterator[tuple[int, Pixels]]:
    """All rows of the picture with the model's channels, some at a time, each with the number of its first row."""
    height, width = source.shape[:2]
    step = max(1, BAND_PIXELS // width)
    for top in range(0, height, step):
        yield top, _with_channels(source.rows(top, min(height, top + step)), channels)


def _resample(source: Rows, box: Box, planes: Pixels) -> None:
    """Resample what lies in `box` into [C, h, w]: Pillow's two passes, of which the first needs no row but its own."""
    channels, height, width = planes.shape
    left, top, right, bottom = box
    narrowed = [np.empty((source.shape[0], width), np.float32) for _ in range(channels)]
    for start, band in _bands(source, channels):
        across = (left, 0, right, len(band))
        for channel, kept in enumerate(narrowed):
            kept[start : start + len(band)] = _resized(band[:, :, channel], (width, len(band)), across)
    for plane in planes:
        plane[...] = _resized(narrowed.pop(0), (width, height), (0, top, width, bottom)).clip(0, 1)


def _resized(plane: Pixels, size: tuple[int, int], box: Box) -> Pixels:
    image = Image.fromarray(np.ascontiguousarray(plane))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC, box), dtype=np.float32)


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
