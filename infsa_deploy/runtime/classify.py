"""From logits to class names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infsa_deploy.records import Prediction

Logits = npt.NDArray[np.float64]

BATCH_PIXELS = 64 * 224 * 224  # images share a call up to this many pixels, then a new one starts


def name_classes(image: str, logits: npt.NDArray[np.floating], classes: Sequence[str], top: int) -> Prediction:
    """The `top` most likely classes of one image, from its logits [classes], with softmax scores."""
    (scores,) = softmax(logits[None].astype(np.float64))
    best = np.argsort(-scores, kind="stable")[:top]
    return Prediction(image, tuple(classes[index] for index in best), tuple(float(scores[index]) for index in best))


def softmax(logits: Logits) -> Logits:
    """Probabilities [B, classes] from logits."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: Logits = powers / powers.sum(axis=1, keepdims=True)
    return normalised
