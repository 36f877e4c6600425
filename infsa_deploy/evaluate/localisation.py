"""Does the map lie on the object? Scores of a map [h, w] of patches against boxes, image by image.

A map says the same of every pixel of a patch, so a patch that a box covers by a share c counts as c pixels inside
and 1 - c outside, at the patch's value. This equals the pixel-wise curve of the map upsampled to nearest, at no more
than two samples a patch, whatever the size of the image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Map = npt.NDArray[np.float64]


def coverage(boxes: npt.NDArray[np.float64], image: tuple[int, int], grid: tuple[int, int]) -> Map:
    """The share of each patch inside any box: [h, w] within 0..1.

    Args:
        boxes: [boxes, 4], x0 y0 x1 y1 in pixels of the model's input; a pixel is inside when its centre is.
        image: height and width of the input, multiples of the grid.
        grid: patches down and across.
    """
    (height, width), (rows, columns) = image, grid
    inside = np.zeros(image, np.bool_)
    for x0, y0, x1, y1 in boxes:
        left, top, right, bottom = (int(np.clip(np.ceil(edge - 0.5), 0, None)) for edge in (x0, y0, x1, y1))
        inside[top:bottom, left:right] = True
    patches = inside.reshape(rows, height // rows, columns, width // columns)
    share: Map = patches.mean(axis=(1, 3), dtype=np.float64)
    return share


def roc_auc(heat: Map, covered: Map) -> float:
    """Area under the ROC curve: the probability that a pixel in a box is hotter than one outside, ties counting half.

    Needs pixels of both kinds. Source: T. Fawcett, Pattern Recognition Letters 27 (2006) 861-874.
    """
    from sklearn.metrics import roc_auc_score

    inside, values, weights = _samples(heat, covered)
    return float(roc_auc_score(inside, values, sample_weight=weights))


def average_precision(heat: Map, covered: Map) -> float:
    """Area under the precision-recall curve as average precision, `sum of (R_n - R_{n-1}) P_n`, without interpolation.

    Source: J. Davis and M. Goadrich, The Relationship Between Precision-Recall and ROC Curves, ICML 2006, on why no
    straight lines join the points.
    """
    from sklearn.metrics import average_precision_score

    inside, values, weights = _samples(heat, covered)
    return float(average_precision_score(inside, values, sample_weight=weights))


def pointing_hit(heat: Map, boxes: npt.NDArray[np.float64], image: tuple[int, int]) -> float:
    """1 when the centre of the hottest patch lies in a box, else 0; among tied patches, the share of those that do.

    Source: J. Zhang et al., Top-down Neural Attention by Excitation Backprop, ECCV 2016 (the pointing game), with no
    tolerance around the box.
    """
    (height, width), (rows, columns) = image, heat.shape
    row, column = np.nonzero(heat == heat.max())
    y, x = (row + 0.5) * height / rows, (column + 0.5) * width / columns
    hits = [
        ((boxes[:, :2] <= (px, py)) & ((px, py) < boxes[:, 2:])).all(axis=1).any() for px, py in zip(x, y, strict=True)
    ]
    return float(np.mean(hits))


def _samples(heat: Map, covered: Map) -> tuple[npt.NDArray[np.bool_], Map, Map]:
    """Each patch as one sample inside and one outside, weighted by its shares; samples of no weight are dropped."""
    share = covered.ravel()
    inside = np.repeat([True, False], share.size)
    values, weights = np.tile(heat.ravel(), 2), np.concatenate([share, 1 - share])
    kept = weights > 0
    return inside[kept], values[kept], weights[kept]
