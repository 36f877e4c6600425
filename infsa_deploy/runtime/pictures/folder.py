"""Images to calibrate and measure int8 on: a folder of the user's, or the digits zoo's validation set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from infsa_models import digits

from infsa_deploy.errors import UsageError
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import Pixels, preprocess, read_image

ZOO = "zoo"
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".npy")
BATCH = 8
MOST_IMAGES = 64  # enough for ranges of a ViT's activations to settle; more only takes longer
FEWEST_IMAGES = 4
PIXELS, BATCH_PIXELS = 64 * 224 * 224, 8 * 224 * 224  # beyond that, fewer images and smaller batches


def calibration_batches(where: str, spec: ImageSpec, images: int | None = None) -> list[Pixels]:
    """Preprocessed images in batches [B, C, H, W]; from the folder `where`, or from `zoo`.

    Args:
        where: a folder, or `zoo`.
        spec: the model's image input.
        images: how many at most; default: 64, fewer above 224x224, where one takes longer.

    Raises:
        UsageError: the folder is missing or holds no image.
        ModelError: a file of it is no image.
    """
    fixed = replace(spec, multiple_of=None)
    count = images or max(FEWEST_IMAGES, min(MOST_IMAGES, PIXELS // (spec.height * spec.width)))
    pictures = _zoo(count) if where == ZOO else _folder(Path(where), count)
    arrays = [preprocess(picture, fixed) for picture in pictures]
    batch = max(1, min(BATCH, BATCH_PIXELS // (spec.height * spec.width)))
    return [np.concatenate(arrays[start : start + batch]) for start in range(0, len(arrays), batch)]


def _zoo(images: int) -> Sequence[Pixels]:
    return [picture.astype(np.float32)[..., None] / 255 for picture in digits.validation_set(images).images]


def _folder(folder: Path, images: int) -> Sequence[Pixels]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)[:images]
    if not paths:
        why = f"it holds no file ending in {', '.join(SUFFIXES)}." if folder.is_dir() else "there is no such folder."
        raise UsageError(f"cannot calibrate on {folder}.", why, "give a folder of images, or --calibration zoo.")
    return [read_image(path) for path in paths]
