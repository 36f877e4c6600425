"""A model that reads one patch, so that every score of its attention is known without running anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from infsa_deploy.evaluate.datasets import Sample
from infsa_deploy.evaluate.model import Classifier
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.sessions.protocol import TensorInfo

GRID, PATCH = 8, 4
SIDE = GRID * PATCH
CONFIDENCE = 0.9
READ = (2, 5)  # the patch that the model reads: row, column
BOX = (5.0 * PATCH, 2.0 * PATCH, 6.0 * PATCH, 3.0 * PATCH)


class OnePatchSession:
    """Class 1 with CONFIDENCE if the patch READ is brighter than 1/2, else class 0; `heat` is its map of any image."""

    runtime = "by hand"
    outputs = ()

    def __init__(self, heat: Callable[[int], np.ndarray], batch: int | str = "batch") -> None:
        self.inputs = (TensorInfo("image", (batch, 1, SIDE, SIDE), "float32"),)
        self.heat, self.calls, self.images = heat, 0, 0

    def __call__(self, feeds):
        image = feeds["image"]
        self.inputs[0].check(image)
        y, x = (place * PATCH for place in READ)
        bright = image[:, 0, y : y + PATCH, x : x + PATCH].mean(axis=(1, 2)) > 0.5
        sure = np.log([[CONFIDENCE, 1 - CONFIDENCE], [1 - CONFIDENCE, CONFIDENCE]])
        maps = np.stack([self.heat(self.images + i) for i in range(len(image))])
        self.calls += 1
        self.images += len(image)
        return {"logits": sure[bright.astype(int)], "attention": np.stack([maps] * 2, axis=1)[:, None]}

    def close(self):
        pass


def on_the_patch(_: int = 0) -> np.ndarray:
    heat = np.zeros((GRID, GRID))
    heat[READ] = 1.0
    return heat


@pytest.fixture
def classifier():
    def build(heat=on_the_patch, name: str = "m", **options) -> Classifier:
        image = ImageSpec(1, SIDE, SIDE, (0.0,), (1.0,))
        session = OnePatchSession(heat, **options)
        return Classifier(name, session.runtime, "fp32", "linear", name, image, ("dark", "bright"), True, session)

    return build


def picture(bright: bool) -> np.ndarray:
    pixels = np.zeros((SIDE, SIDE, 1), np.float32)
    if bright:
        y, x = (place * PATCH for place in READ)
        pixels[y : y + PATCH, x : x + PATCH] = 1.0
    return pixels


@pytest.fixture
def samples():
    """Bright pictures, labelled rightly."""

    def make(count: int, boxes=(BOX,)) -> list[Sample]:
        return [Sample(f"image {i}", lambda: picture(True), 1, boxes) for i in range(count)]

    return make
