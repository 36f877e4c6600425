"""Images in, class names out, on any runtime that knows the model's metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infsa_deploy.records import Prediction
from infsa_deploy.runtime.images import at_own_size, load_batch, picture_shape
from infsa_deploy.runtime.memory import check_fits, describe_need
from infsa_deploy.runtime.protocol import ModelSession

Logits = npt.NDArray[np.float64]

BATCH_PIXELS = 64 * 224 * 224  # images share a call up to this many pixels, then a new one starts


def classify(
    session: ModelSession,
    images: Sequence[str | Path],
    top: int = 3,
    *,
    note: Callable[[str], None] = lambda line: None,
) -> list[Prediction]:
    """The `top` most likely classes of each image file, with softmax scores.

    Args:
        session: a loaded model.
        images: image files.
        top: classes to name an image.
        note: told how much of the host's memory each size of image needs, before it is allocated.

    Raises:
        ModelError: a file is no image.
        HostError: an image needs more memory than this machine has.
    """
    (model_input,), spec, classes = session.inputs, session.metadata.image, session.metadata.classes
    fixed = model_input.shape[0] if isinstance(model_input.shape[0], int) else None
    if session.on_host:
        for image in {at_own_size(picture_shape(path), spec): None for path in images}:
            note(describe_need(session.metadata, image))
            check_fits(session.metadata, image)
    together = 1 if spec.multiple_of else max(1, BATCH_PIXELS // (spec.height * spec.width))
    batch = fixed or min(together, session.max_batch or together)
    predictions = []
    for start in range(0, len(images), batch):
        paths = images[start : start + batch]
        pixels = load_batch(paths, spec).astype(model_input.dtype, copy=False)
        if fixed and len(paths) < fixed:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], fixed - len(paths), axis=0)])
        logits = session({model_input.name: pixels})["logits"][: len(paths)].astype(np.float64)
        for path, scores in zip(paths, softmax(logits), strict=True):
            best = np.argsort(-scores, kind="stable")[:top]
            names = tuple(classes[index] for index in best)
            predictions.append(Prediction(str(path), names, tuple(float(scores[index]) for index in best)))
    return predictions


def softmax(logits: Logits) -> Logits:
    """Probabilities [B, classes] from logits."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    normalised: Logits = powers / powers.sum(axis=1, keepdims=True)
    return normalised
