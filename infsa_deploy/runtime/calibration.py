"""Images to calibrate and measure int8 on: a folder of the user's, or the digits zoo's validation set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from infsa_models import digits

from infsa_deploy.errors import UsageError
from infsa_deploy.records import ImageSpec
from infsa_deploy.runtime.images import Pixels, preprocess, read_image

ZOO = "zoo"
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".npy")
IMAGES = 64  # enough for ranges of a ViT's activations to settle; more only takes longer
BATCH = 8


def calibration_batches(where: str, spec: ImageSpec, images: int = IMAGES) -> list[Pixels]:
    """Up to `images` preprocessed images in batches [B, C, H, W]; from the folder `where`, or from `zoo`.

    Raises:
        UsageError: the folder is missing or holds no image.
        ModelError: a file of it is no image.
    """
    fixed = replace(spec, multiple_of=None)
    pictures = _zoo(images) if where == ZOO else _folder(Path(where), images)
    arrays = [preprocess(picture, fixed) for picture in pictures]
    return [np.concatenate(arrays[start : start + BATCH]) for start in range(0, len(arrays), BATCH)]


def _zoo(images: int) -> Sequence[Pixels]:
    return [picture.astype(np.float32)[..., None] / 255 for picture in digits.validation_set(images).images]


def _folder(folder: Path, images: int) -> Sequence[Pixels]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)[:images]
    if not paths:
        why = f"it holds no file ending in {', '.join(SUFFIXES)}." if folder.is_dir() else "there is no such folder."
        raise UsageError(f"cannot calibrate on {folder}.", why, "give a folder of images, or --calibration zoo.")
    return [read_image(path) for path in paths]
