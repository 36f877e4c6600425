"""The digits task: find the one upright handwritten digit among scrambled ones, and say which it is.

An image is 64x64 pixels, 8x8 cells of 8x8. One random cell holds a digit, about twenty others a digit whose
pixels are shuffled, and noise lies over all. The source digits (`digits_source.npz`: images [1797, 8, 8] of
0..16, labels [1797]) are the test set of "Optical Recognition of Handwritten Digits", E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, licensed CC BY 4.0, as
scikit-learn ships it.
Everything drawn is a whole number from `numpy.random.RandomState`, whose streams numpy keeps for ever, so an
image set is the same on every machine and is exactly what an 8-bit PNG of it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

IMAGE_SIDE = 64
CELL_SIDE = 8
GRID = IMAGE_SIDE // CELL_SIDE
CLASS_NAMES = tuple(str(digit) for digit in range(10))
MEAN = 0.125
STD = 0.2

DISTRACTORS = (18, 23)  # lowest and highest+1 number of scrambled digits in an image
INTENSITY = (10, 16)  # lowest and highest+1 factor on the 0..16 of the source
NOISE = 24  # noise is uniform over 0..NOISE
SPLIT_SEED, TEST_SEED, VALIDATION_SEED = 11, 22, 33
TEST_DIGITS, VALIDATION_DIGITS = 360, 180
SHIFT_SHARE = 3  # of so many training digits, one is left where it is

UInt8 = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DigitImages:
    """images: [count, 64, 64] uint8; labels: [count] int64; boxes: [count, 4] int64, pixels x0 y0 x1 y1."""

    images: UInt8
    labels: Int64
    boxes: Int64


@cache
def _source() -> tuple[UInt8, UInt8]:
    with np.load(Path(__file__).with_name("digits_source.npz")) as file:
        return file["images"], file["labels"]


@cache
def source_split() -> dict[str, Int64]:
    """Indices of the source digits in each of the disjoint parts "train", "validation" and "test"."""
    order = np.random.RandomState(SPLIT_SEED).permutation(len(_source()[1])).astype(np.int64)
    held_out = TEST_DIGITS + VALIDATION_DIGITS
    return {
        "test": order[:TEST_DIGITS],
        "validation": order[TEST_DIGITS:held_out],
        "train": order[held_out:],
    }


def test_set(count: int = 1000) -> DigitImages:  # noqa: PT028 - not a test
    """The first `count` test images; their digits, scrambled ones included, are in no training image."""
    return _draw_set(np.random.RandomState(TEST_SEED), "test", count)


test_set.__test__ = False  # type: ignore[attr-defined]  # or pytest collects it where it is imported


def validation_set(count: int = 1000) -> DigitImages:
    """Images for choosing a recipe, made of digits neither trained on nor tested on."""
    return _draw_set(np.random.RandomState(VALIDATION_SEED), "validation", count)


def train_batch(rng: np.random.RandomState, size: int) -> DigitImages:
    """Draw training images; the upright digits are also shifted by up to a pixel, so that few look alike."""
    return _draw_set(rng, "train", size, shifts=True)


def normalize(images: UInt8) -> npt.NDArray[np.float32]:
    """Model input: [count, 64, 64] uint8 -> [count, 1, 64, 64] float32, (pixel/255 - mean)/std."""
    scaled = images[:, None].astype(np.float32) / np.float32(255.0)
    normalized: npt.NDArray[np.float32] = (scaled - np.float32(MEAN)) / np.float32(STD)
    return normalized


def _draw_set(rng: np.random.RandomState, part: str, count: int, *, shifts: bool = False) -> DigitImages:
    drawn = DigitImages(
        images=np.empty((count, IMAGE_SIDE, IMAGE_SIDE), np.uint8),
        labels=np.empty(count, np.int64),
        boxes=np.empty((count, 4), np.int64),
    )
    for i in range(count):
        drawn.images[i], drawn.labels[i], drawn.boxes[i] = _draw_image(rng, source_split()[part], shifts)
    return drawn


def _draw_image(rng: np.random.RandomState, indices: Int64, shifts: bool) -> tuple[UInt8, int, list[int]]:
    sources, labels = _source()
    image = rng.randint(0, NOISE + 1, (IMAGE_SIDE, IMAGE_SIDE))
    cells = rng.permutation(GRID * GRID)[: 1 + rng.randint(*DISTRACTORS)]
    chosen = indices[rng.randint(0, len(indices), len(cells))]
    boxes = []
    for position, (cell, source) in enumerate(zip(cells, chosen, strict=True)):
        digit = sources[source].astype(np.int64)
        if position > 0:
            digit = rng.permutation(digit.ravel()).reshape(digit.shape)
        elif shifts and rng.randint(SHIFT_SHARE):
            digit = _shifted(digit, *rng.randint(-1, 2, 2))
        y, x = CELL_SIDE * (cell // GRID), CELL_SIDE * (cell % GRID)
        image[y : y + CELL_SIDE, x : x + CELL_SIDE] += digit * rng.randint(*INTENSITY)
        boxes.append([int(x), int(y), int(x) + CELL_SIDE, int(y) + CELL_SIDE])
    return np.minimum(image, 255).astype(np.uint8), int(labels[chosen[0]]), boxes[0]


def _shifted(digit: Int64, down: int, right: int) -> Int64:
    padded = np.pad(digit, 1)
    return padded[1 - down : 1 - down + CELL_SIDE, 1 - right : 1 - right + CELL_SIDE]
