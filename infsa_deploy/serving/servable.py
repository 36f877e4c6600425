"""What a server must know of a model file, read without a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from infsa_deploy.engine import sidecar
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.records.engine import EngineRecord, TensorProfile
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.runtime.classify import BATCH_PIXELS
from infsa_deploy.runtime.sessions.artefact import is_engine
from infsa_deploy.runtime.sessions.protocol import TensorInfo, check_one_input

MOST_TOGETHER = 32  # default for a model that takes any number: more only makes single answers later
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Servable:
    """A model file.

    Attributes:
        input, outputs: the image input and the outputs, batch axis first.
        smallest, largest: images a run takes, None for any number.
        weights: of an ONNX file that does not hold them.
        record, sidecar: of an engine.
        library: the plugin library, where an engine needs it beside it.
    """

    path: Path
    input: TensorInfo
    outputs: tuple[TensorInfo, ...]
    metadata: ModelMetadata
    smallest: int
    largest: int | None
    weights: Path | None = None
    record: EngineRecord | None = None
    sidecar: Path | None = None
    library: Path | None = None

    @property
    def together(self) -> int:
        """Images a run by default."""
        image = self.metadata.image
        usual = max(1, min(MOST_TOGETHER, BATCH_PIXELS // (image.height * image.width)))
        return min(usual, self.largest or usual)


def read_servable(path: Path, library: Path | None) -> Servable:
    """Open an ONNX file in ONNX Runtime, or read an engine's sidecar.

    Raises:
        ModelError: the file is missing, damaged or not ours.
        UsageError: it takes more than images, or bfloat16 arrays, which servers' clients cannot send; or the library
            does not exist.
        HostError: the plugin library that an engine needs is not here, or is another.
    """
    found = _engine(path, library) if is_engine(path) else _onnx(path)
    if found.input.dtype == "bfloat16":
        raise UsageError(f"{path} takes bfloat16 images.", "NumPy has no such type.", "export it with float32 inputs.")
    return found


def model_name(path: Path, asked: str | None) -> str:
    """The name of the model in the repository; UsageError where a folder or a URL cannot have it."""
    name = asked or path.name.split(".")[0]
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a model.", "it is a folder and a part of URLs.", "give --name a_name.")
    return name


def _onnx(path: Path) -> Servable:
    from infsa_deploy.runtime.sessions.ort import OrtSession

    session = OrtSession(path, threads=1)
    check_one_input(session.inputs)
    (image,) = session.inputs
    fixed = image.shape[0] if isinstance(image.shape[0], int) else None
    weights = path.with_name(f"{path.name}.data")  # where export puts weights that a protobuf cannot hold
    found = Servable(path, image, session.outputs, session.metadata, fixed or 1, fixed)
    session.close()
    return replace(found, weights=weights) if weights.is_file() else found


def _engine(path: Path, library: Path | None) -> Servable:
    record = sidecar.read_sidecar(path)
    sidecar.check_file(path, record)
    if record.metadata is None:
        raise ModelError(f"{path} was not built from a model of infsa-deploy.", "", "export the PyTorch model.")
    needed = None
    if record.plugins.library and not record.plugins.embedded:
        needed = sidecar.find_plugins(path, record, library)
    check_one_input(tuple(_info(name, profile) for name, profile in record.inputs.items()))
    ((name, profile),) = record.inputs.items()
    low, high = profile.minimum or profile.shape, profile.maximum or profile.shape
    outputs = tuple(_info(output, shape) for output, shape in record.outputs.items())
    return Servable(
        path,
        _info(name, profile),
        outputs,
        record.metadata,
        smallest=low[0],
        largest=high[0],
        record=record,
        sidecar=sidecar.sidecar_path(path),
        library=needed,
    )


def _info(name: str, profile: TensorProfile) -> TensorInfo:
    axes = tuple(f"axis {index}" if size < 0 else size for index, size in enumerate(profile.shape))
    return TensorInfo(name, axes, profile.dtype)
