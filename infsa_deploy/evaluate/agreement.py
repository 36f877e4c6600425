"""How far two forms of one model look at the same thing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infsa_deploy.evaluate.datasets import Sample
from infsa_deploy.evaluate.model import Classifier, check_has_maps
from infsa_deploy.runtime.pictures.preprocess import preprocess

Maps = npt.NDArray[np.float64]


def map_cosines(first: Classifier, second: Classifier, samples: Sequence[Sample]) -> Maps:
    """Cosine similarity of the two models' maps: [images, L, H]; see cosines.

    Raises:
        ModelError: a model has no maps, or an image cannot be read.
    """
    for classifier in (first, second):
        check_has_maps(classifier)
    batch = min(first.batch, second.batch)
    found = []
    for start in range(0, len(samples), batch):
        pictures = [preprocess(sample.read(), first.image) for sample in samples[start : start + batch]]
        maps = [classifier(np.concatenate(pictures))[1] for classifier in (first, second)]
        found.append(cosines(*(each for each in maps if each is not None)))
    return np.concatenate(found)


def cosines(first: Maps, second: Maps) -> Maps:
    """Cosine similarity of maps [..., h, w] -> [...]; 1 for two maps that are zero (a head no key answers)."""
    a, b = (maps.reshape(*maps.shape[:-2], -1).astype(np.float64) for maps in (first, second))
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    both_zero = (a == 0).all(axis=-1) & (b == 0).all(axis=-1)
    similar: Maps = np.where(both_zero, 1.0, (a * b).sum(axis=-1) / np.where(norms > 0, norms, 1.0))
    return similar
