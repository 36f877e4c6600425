"""Does the map say what the answer rests on? Patches are removed in its order, and the answer watched.

The curve is the probability of the class the model named on the whole image, against the share of patches removed,
from 0 to 1. Most relevant first (MoRF), a faithful map makes it fall at once: the score is the area over the curve,
`1 - area`. Least relevant first (LeRF), it makes the curve stay up: the score is the area under it. Areas are by the
trapezoidal rule, and the probability is taken as it is, not divided by that of the whole image.
Source: W. Samek et al., Evaluating the Visualization of What a Deep Neural Network Has Learned, IEEE TNNLS 28 (2017)
2660-2673, where the area is a mean of drops; both orders as in R. Tomsett et al., Sanity Checks for Saliency
Metrics, AAAI 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import UsageError

Pixels = npt.NDArray[np.float32]
Map = npt.NDArray[np.float64]
Curve = npt.NDArray[np.float64]

BASELINES = ("blur", "mean")


@dataclass(frozen=True)
class Curves:
    """Probabilities at each number of removed patches, [points] each, and those numbers as shares of all."""

    removed: Curve
    morf: Curve
    lerf: Curve

    @property
    def morf_aoc(self) -> float:
        """Area over the curve, most relevant first."""
        return 1.0 - _area(self.morf, self.removed)

    @property
    def lerf_auc(self) -> float:
        """Area under the curve, least relevant first."""
        return _area(self.lerf, self.removed)


def _area(values: Curve, places: Curve) -> float:
    return float(((values[1:] + values[:-1]) / 2 * np.diff(places)).sum())


def removal_curves(
    image: Pixels,
    heat: Map,
    probabilities: Callable[[Pixels], Map],
    *,
    baseline: str,
    steps: int,
    seed: int,
    batch: int = 64,
) -> Curves:
    """Remove patches of one image step by step.

    Args:
        image: [C, H, W], as the model takes it.
        heat: [h, w], the map; H and W are multiples of h and w.
        probabilities: [B, C, H, W] -> [B, classes].
        baseline: `blur` shows the image under a Gaussian as wide as a patch, `mean` each channel's mean.
        steps: points of the curve after the first, as many patches apart; at most one a patch.
        seed: patches of equal heat are ordered at random, by this seed.
        batch: pictures to show at once.
    """
    numbers = np.unique(np.round(np.linspace(0, heat.size, steps + 1)).astype(int))
    order = _falling_order(heat, seed)
    hidden = hidden_image(image, heat.shape, baseline)
    inner = numbers[1:-1]
    masks = [_mask(chosen[:number], heat.shape) for chosen in (order, order[::-1]) for number in inner]
    masks = [_mask(order[:0], heat.shape), _mask(order, heat.shape), *masks]
    found = np.concatenate(
        [
            probabilities(np.stack([np.where(_to_pixels(mask, image), hidden, image) for mask in masks[i : i + batch]]))
            for i in range(0, len(masks), batch)
        ]
    )
    first, last, *rest = found[:, int(found[0].argmax())]
    morf, lerf = rest[: len(inner)], rest[len(inner) :]
    return Curves(numbers / heat.size, np.array([first, *morf, last]), np.array([first, *lerf, last]))


def hidden_image(image: Pixels, grid: tuple[int, ...], baseline: str) -> Pixels:
    """What removed patches show: [C, H, W]; UsageError for a baseline that is none of BASELINES."""
    if baseline == "mean":
        return np.broadcast_to(image.mean(axis=(1, 2), keepdims=True), image.shape)
    if baseline == "blur":
        down, across = (_gaussian(side, side // cells) for side, cells in zip(image.shape[1:], grid, strict=True))
        blurred: Pixels = down @ image @ across.T
        return blurred
    raise UsageError(f"baseline {baseline!r} is unknown.", "", f"choose one of {', '.join(BASELINES)}.")


def _gaussian(side: int, sigma: int) -> Pixels:
    """A matrix [side, side] that blurs an axis; each row sums to 1, so the borders do not darken."""
    distance = np.arange(side, dtype=np.float32)[:, None] - np.arange(side, dtype=np.float32)
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    blur: Pixels = weights / weights.sum(axis=1, keepdims=True)
    return blur


def _falling_order(heat: Map, seed: int) -> npt.NDArray[np.int64]:
    return np.lexsort((np.random.default_rng(seed).permutation(heat.size), -heat.ravel()))


def _mask(patches: npt.NDArray[np.int64], grid: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(grid, np.bool_)
    mask.ravel()[patches] = True
    return mask


def _to_pixels(mask: npt.NDArray[np.bool_], image: Pixels) -> npt.NDArray[np.bool_]:
    (_, height, width), (rows, columns) = image.shape, mask.shape
    return mask.repeat(height // rows, axis=0).repeat(width // columns, axis=1)
