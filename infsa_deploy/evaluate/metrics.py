"""Accuracy, confusion and calibration, from each image's label, ranked classes and confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infsa_deploy.evaluate.results import Accuracy, CalibrationBin
from infsa_deploy.evaluate.statistics import proportion

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BINS = 15
RANKED = 5


def accuracy(labels: Ints, ranked: Ints, confidence: Floats, classes: Sequence[str]) -> Accuracy:
    """Score predictions.

    Args:
        labels: [images], the right class of each.
        ranked: [images, up to RANKED], classes in falling order of probability.
        confidence: [images], probability of the first class.
        classes: class names.
    """
    right = ranked[:, 0] == labels
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (labels, ranked[:, 0]), 1)
    counts = confusion.sum(axis=1)
    per_class = {
        name: float(confusion[index, index] / counts[index]) if counts[index] else None
        for index, name in enumerate(classes)
    }
    ece, bins = calibration(right, confidence)
    return Accuracy(
        top1=proportion(int(right.sum()), len(labels)),
        top5=float((ranked == labels[:, None]).any(axis=1).mean()),
        ece=ece,
        calibration=bins,
        per_class=per_class,
        confusion=tuple(tuple(int(count) for count in row) for row in confusion),
    )


def calibration(right: npt.NDArray[np.bool_], confidence: Floats) -> tuple[float, tuple[CalibrationBin, ...]]:
    """The expected calibration error, `sum over bins of share of images * |accuracy - mean confidence|`.

    BINS bins of equal width divide (0, 1], each closed above. Source: C. Guo et al., On Calibration of Modern Neural
    Networks, ICML 2017, equation 3.
    """
    edges = np.linspace(0, 1, BINS + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    bins, error = [], 0.0
    for index in range(BINS):
        inside = place == index
        count = int(inside.sum())
        if not count:
            bins.append(CalibrationBin(0, float(edges[index] + edges[index + 1]) / 2, 0.0))
            continue
        mean, share = float(confidence[inside].mean()), float(right[inside].mean())
        bins.append(CalibrationBin(count, mean, share))
        error += count / len(confidence) * abs(share - mean)
    return error, tuple(bins)
