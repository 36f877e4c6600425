"""Maps of two models compared."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.evaluate.agreement import cosines, map_cosines
from tests.evaluate.conftest import on_the_patch


def test_cosines():
    one, other, zero = np.eye(2), np.array([[1.0, 0.0], [0.0, 0.0]]), np.zeros((2, 2))
    pairs = [(one, one), (one, 3 * one), (one, other), (other, np.eye(2)[::-1]), (zero, zero), (zero, one)]
    found = cosines(*(np.stack(side) for side in zip(*pairs, strict=True)))
    assert found == pytest.approx([1, 1, 0.5**0.5, 0, 1, 0])


def test_models_compared_image_by_image(classifier, samples):
    turned = classifier(lambda index: on_the_patch() if index < 3 else on_the_patch().T, batch=2)
    found = map_cosines(classifier(), turned, samples(5))
    assert found.shape == (5, 1, 2)  # one layer, two heads
    np.testing.assert_array_equal(found[:, 0, 0], [1, 1, 1, 0, 0])
