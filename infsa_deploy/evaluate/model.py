"""One classifier, whatever runs it: pixels in, probabilities and attention maps out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infsa_deploy.config import Trust
from infsa_deploy.errors import ModelError
from infsa_deploy.files import artefact_sha256
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.classify import BATCH_PIXELS, softmax
from infsa_deploy.runtime.cores import thread_count
from infsa_deploy.runtime.memory import check_fits
from infsa_deploy.runtime.outputs import check_classifies
from infsa_deploy.runtime.sessions.artefact import open_artefact
from infsa_deploy.runtime.sessions.protocol import Session, call_padded

Pixels = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]
Maps = npt.NDArray[np.float64]

MOST_AT_ONCE = 64  # images a call: enough to keep cores busy, few enough to see progress


@dataclass(frozen=True)
class Classifier:
    """A loaded model and what is known of it.

    Attributes:
        name: as the user named it.
        runtime, dtype, variant: what runs, in which type, with which attention.
        identity: changes with the model: a resumed evaluation must meet the same.
        image, classes: its input and its class names.
        has_maps: whether it returns attention maps.
        max_batch: the most images a call may have, None for any number.
    """

    name: str
    runtime: str
    dtype: str
    variant: str
    identity: str
    image: ImageSpec
    classes: tuple[str, ...]
    has_maps: bool
    session: Session
    max_batch: int | None = None

    @property
    def batch(self) -> int:
        """Images a call: the model's fixed number, one for a model of any size, else as many as memory allows."""
        fixed = self.session.inputs[0].shape[0]
        if isinstance(fixed, int):
            return fixed
        pixels = self.image.height * self.image.width
        together = 1 if self.image.multiple_of else max(1, min(MOST_AT_ONCE, BATCH_PIXELS // pixels))
        return min(together, self.max_batch or together)

    def __call__(self, pixels: Pixels) -> tuple[Probabilities, Maps | None]:
        """[B, C, H, W], B at most `batch` -> probabilities [B, classes] and maps [B, L, H, h, w], None if none."""
        found = call_padded(self.session, pixels)
        probabilities = softmax(found["logits"].astype(np.float64))
        return probabilities, found["attention"].astype(np.float64) if self.has_maps else None


def open_classifier(
    name: str, *, provider: str = "cpu", threads: int | None = None, trust: Trust | None = None
) -> Classifier:
    """Load an ONNX file or an engine, or a zoo model (a name that is no file's) to run eagerly in PyTorch.

    Raises:
        ModelError: the file cannot be loaded.
        HostError: an image needs more memory than this machine has, or an engine what it lacks.
        UsageError: there is no zoo model of that name, or the file's model does not classify pictures.
    """
    path = Path(name)
    if not path.suffix and not path.exists():
        return _eager(name, threads)
    session = open_artefact(path, provider, threads, trust=trust)
    check_classifies(name, session)
    metadata = session.metadata
    if session.on_host:
        check_fits(metadata, metadata.image)
    return Classifier(
        name=name,
        runtime=session.runtime,
        dtype=metadata.dtype,
        variant=metadata.variant,
        identity=artefact_sha256(path),
        image=metadata.image,
        classes=metadata.classes,
        has_maps=any(info.name == "attention" for info in session.outputs),
        session=session,
        max_batch=session.max_batch,
    )


def check_has_maps(classifier: Classifier) -> None:
    """Raise ModelError unless the model returns attention maps."""
    if not classifier.has_maps:
        raise ModelError(
            f"{classifier.name} returns no attention maps.",
            "it was exported without them.",
            "export it again with --attention-maps.",
        )


def _eager(name: str, threads: int | None) -> Classifier:
    import torch
    from infsa_models.checkpoint import weights_hash

    from infsa_deploy.config import ModelSource
    from infsa_deploy.export.attention_maps import with_attention_maps
    from infsa_deploy.export.sources import load_reference
    from infsa_deploy.runtime.sessions.eager import EagerSession

    if threads:
        torch.set_num_threads(thread_count(threads))
    reference = load_reference(ModelSource(model=name))
    session = EagerSession(with_attention_maps(reference.module, reference), reference.image)
    return Classifier(
        name=name,
        runtime=session.runtime,
        dtype="fp32",
        variant=reference.variant,
        identity=weights_hash(reference.module),
        image=reference.image,
        classes=reference.classes,
        has_maps=True,
        session=session,
    )
