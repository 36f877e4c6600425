"""From logits to class names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import ModelError
from infsa_deploy.records.model import Prediction

Logits = npt.NDArray[np.float64]

BATCH_PIXELS = 64 * 224 * 224  # images share a call up to this many pixels, then a new one starts


def name_classes(image: str, logits: npt.NDArray[np.floating], classes: Sequence[str], top: int) -> Prediction:
    """The `top` most likely classes of one image, from its logits [classes], with softmax scores.

    Raises:
        ModelError: a logit is NaN or infinite.
    """
    check_finite(image, logits)
    (scores,) = softmax(logits[None].astype(np.float64))
    best = np.argsort(-scores, kind="stable")[:top]
    return Prediction(image, tuple(classes[index] for index in best), tuple(float(scores[index]) for index in best))


def check_finite(image: str, logits: npt.NDArray[np.floating]) -> None:
    """Raise ModelError if a logit of the image is NaN or infinite: no class can be named then."""
    wrong = logits.size - np.count_nonzero(np.isfinite(logits.astype(np.float64)))
    if wrong:
        raise ModelError(
            f"the model's logits for {image} are not finite.",
            f"{wrong} of {logits.size} are NaN or infinite; in float16, numbers beyond 65504 become so.",
            "see with infsa-deploy validate --find-divergence where that begins; take fp32 or bf16.",
        )


def softmax(logits: Logits) -> Logits:
    """Probabilities [B, classes] from logits."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: Logits = powers / powers.sum(axis=1, keepdims=True)
    return normalised
