"""ROC, PR and pointing where the answer is known without a computer."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.evaluate.localisation import average_precision, coverage, pointing_hit, roc_auc
from infsa_deploy.evaluate.metrics import mean_estimate

IMAGE = (32, 32)


def covered(*boxes, grid=(8, 8)):
    return coverage(np.array(boxes, np.float64).reshape(-1, 4), IMAGE, grid)


def test_coverage():
    whole = covered([4, 8, 8, 12])
    assert whole[2, 1] == 1.0
    assert whole.sum() == 1.0
    assert covered([0, 0, 2, 32])[:, 0] == pytest.approx(0.5)
    assert covered([0, 0, 6, 4], [4, 0, 8, 4])[0, :3] == pytest.approx([1, 1, 0])  # a union, not a sum
    assert covered([3.4, 0, 3.6, 32]).sum() == pytest.approx(8 * 0.25)  # the pixel whose centre, 3.5, is inside
    assert covered().sum() == 0


def test_one_patch_in_its_box_is_perfect():
    box, heat = covered([4, 8, 8, 12]), np.zeros((8, 8))
    heat[2, 1] = 1.0
    assert roc_auc(heat, box) == 1.0
    assert average_precision(heat, box) == 1.0
    assert roc_auc(-heat, box) == 0.0
    assert average_precision(-heat, box) == pytest.approx(1 / 64)  # found last: precision 1/64 at recall 1


def test_a_map_that_knows_nothing():
    box = covered([4, 8, 8, 12])
    assert roc_auc(np.ones((8, 8)), box) == 0.5
    assert average_precision(np.ones((8, 8)), box) == pytest.approx(1 / 64)


@pytest.mark.parametrize("rank", [0, 1, 7, 63])
def test_one_patch_at_a_rank(rank):
    heat = np.arange(64, 0, -1.0)
    box = np.zeros(64)
    box[rank] = 1.0
    assert roc_auc(heat.reshape(8, 8), box.reshape(8, 8)) == pytest.approx(1 - rank / 63)
    assert average_precision(heat.reshape(8, 8), box.reshape(8, 8)) == pytest.approx(1 / (rank + 1))


def test_two_of_four_pixels():
    # Falling order in, out, in, out: of 4 pairs 3 are ordered rightly; precisions 1 and 2/3 at recalls 1/2 and 1.
    heat, box = np.array([[4.0, 3.0], [2.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    assert roc_auc(heat, box) == pytest.approx(3 / 4)
    assert average_precision(heat, box) == pytest.approx(1 / 2 + 1 / 2 * 2 / 3)


def test_patches_equal_pixels(rng):
    """The weighted samples are the pixel-wise curves of the map upsampled to nearest."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    heat = rng.integers(0, 5, (8, 8)).astype(np.float64)
    boxes = np.array([[3, 5, 17, 14], [15, 2, 30, 9]], np.float64)
    inside = np.zeros(IMAGE, bool)
    inside[5:14, 3:17] = inside[2:9, 15:30] = True
    pixels = heat.repeat(4, axis=0).repeat(4, axis=1)
    share = coverage(boxes, IMAGE, (8, 8))
    assert roc_auc(heat, share) == pytest.approx(roc_auc_score(inside.ravel(), pixels.ravel()), abs=1e-12)
    expected = average_precision_score(inside.ravel(), pixels.ravel())
    assert average_precision(heat, share) == pytest.approx(expected, abs=1e-12)


def test_random_maps_score_a_half(rng):
    box = covered([4, 8, 20, 20])
    estimate = mean_estimate([roc_auc(rng.random((8, 8)), box) for _ in range(400)])
    assert estimate.low < 0.5 < estimate.high
    assert estimate.high - estimate.low < 0.03


def test_pointing():
    heat = np.zeros((8, 8))
    heat[2, 1] = 1.0
    inside, beside = np.array([[4.0, 8.0, 8.0, 12.0]]), np.array([[8.0, 8.0, 12.0, 12.0]])
    assert pointing_hit(heat, inside, IMAGE) == 1.0
    assert pointing_hit(heat, beside, IMAGE) == 0.0
    assert pointing_hit(heat, np.concatenate([beside, inside]), IMAGE) == 1.0
    assert pointing_hit(np.ones((8, 8)), inside, IMAGE) == pytest.approx(1 / 64)  # all tied: as good as chance
