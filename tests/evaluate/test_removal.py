"""Removal curves of a model that reads one patch."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.errors import UsageError
from infsa_deploy.evaluate.removal import hidden_image, removal_curves
from tests.evaluate.conftest import CONFIDENCE, GRID, PATCH, READ, SIDE, on_the_patch, picture

P = GRID * GRID
LOW = 1 - CONFIDENCE
DROP = CONFIDENCE - LOW


def curves(model, heat, **options):
    image = picture(True).transpose(2, 0, 1)
    settings = {"baseline": "mean", "steps": P, "seed": 0} | options
    return removal_curves(image, heat, lambda pixels: model(pixels)[0], **settings)


@pytest.mark.parametrize("baseline", ["blur", "mean"])
def test_a_perfect_map(baseline, classifier):
    found = curves(classifier(), on_the_patch(), baseline=baseline)
    assert found.removed == pytest.approx(np.arange(P + 1) / P)
    assert found.morf == pytest.approx([CONFIDENCE] + [LOW] * P)
    assert found.lerf == pytest.approx([CONFIDENCE] * P + [LOW])
    # One trapezoid of width 1/P falls from CONFIDENCE to LOW, all else is flat.
    assert found.morf_aoc == pytest.approx(1 - LOW - DROP / (2 * P))
    assert found.lerf_auc == pytest.approx(CONFIDENCE - DROP / (2 * P))


def test_a_map_that_is_wrong_throughout(classifier):
    found = curves(classifier(), -on_the_patch())
    assert found.morf_aoc == pytest.approx(1 - (CONFIDENCE - DROP / (2 * P)))
    assert found.lerf_auc == pytest.approx(LOW + DROP / (2 * P))


def test_a_patch_in_the_middle_of_the_order(classifier):
    rank = 23
    heat = np.arange(P, 0, -1.0)
    heat[[rank, READ[0] * GRID + READ[1]]] = heat[[READ[0] * GRID + READ[1], rank]]
    found = curves(classifier(), heat.reshape(GRID, GRID))
    assert found.morf == pytest.approx([CONFIDENCE] * (rank + 1) + [LOW] * (P - rank))
    assert found.lerf == pytest.approx([CONFIDENCE] * (P - rank) + [LOW] * (rank + 1))


def test_fewer_steps_than_patches_and_batches(classifier):
    model = classifier()
    found = curves(model, on_the_patch(), steps=4, batch=3)
    assert found.removed == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert found.morf_aoc == pytest.approx(1 - LOW - DROP / 8)
    assert (model.session.images, model.session.calls) == (8, 3)


def test_more_steps_than_patches(classifier):
    assert len(curves(classifier(), on_the_patch(), steps=10 * P).removed) == P + 1


def test_ties_are_ordered_at_random_but_repeatably(classifier):
    uniform = np.ones((GRID, GRID))
    places = [int(np.argmin(curves(classifier(), uniform, seed=seed).morf > 0.5)) for seed in range(40)]
    assert places[0] == int(np.argmin(curves(classifier(), uniform, seed=0).morf > 0.5))
    # The place of the patch is uniform over 1..P: its mean has a standard deviation of P / sqrt(12 * 40).
    assert abs(np.mean(places) - (P + 1) / 2) < 4 * P / np.sqrt(12 * 40)
    assert len(set(places)) > 10


def test_what_removed_patches_show():
    image = np.zeros((2, SIDE, SIDE), np.float32)
    image[1] = 3.0
    image[1, :, ::2] = 1.0
    mean = hidden_image(image, (GRID, GRID), "mean")
    assert (mean[0] == 0).all()
    assert mean[1] == pytest.approx(2.0)
    blurred = hidden_image(image, (GRID, GRID), "blur")
    assert blurred[1] == pytest.approx(np.full((SIDE, SIDE), 2.0), abs=0.2)
    constant = hidden_image(np.full_like(image, 0.7), (GRID, GRID), "blur")
    assert constant == pytest.approx(np.full_like(image, 0.7), abs=1e-6)
    point = np.zeros((1, SIDE, SIDE), np.float32)
    point[0, 16, 16] = 1.0
    spread = hidden_image(point, (GRID, GRID), "blur")[0]
    assert spread[16, 16 + PATCH] / spread[16, 16] == pytest.approx(np.exp(-0.5), rel=1e-2)  # one sigma away
    with pytest.raises(UsageError, match="noise"):
        hidden_image(image, (GRID, GRID), "noise")
