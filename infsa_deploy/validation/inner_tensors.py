"""What an artefact computes on the way to its outputs: every floating tensor of its main graph, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import onnxruntime

from infsa_deploy.config import EngineConfig, Precision, Trust
from infsa_deploy.engine import sidecar
from infsa_deploy.engine.build import Listener
from infsa_deploy.engine.driver import require_gpu
from infsa_deploy.engine.from_export import build
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.files import artefact_sha256
from infsa_deploy.graph.store import load_model, save_model
from infsa_deploy.records.engine import EngineRecord
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.runtime.sessions.artefact import is_engine
from infsa_deploy.runtime.sessions.protocol import Arrays, TensorInfo
from infsa_deploy.runtime.sessions.trt import TrtSession

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
IMAGES = 4  # all tensors of all layers are held at once
PIXELS = IMAGES * 224 * 224


@dataclass(frozen=True)
class Inside:
    """An artefact and what it was made from, each read once.

    Attributes:
        path: the artefact.
        source: the ONNX file: the artefact itself, or what an engine was built from.
        model: what `source` holds.
        record: an engine's sidecar.
    """

    path: Path
    source: Path
    model: ir.Model
    metadata: ModelMetadata
    record: EngineRecord | None = None

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs as a session names them."""
        return tuple(_info(value) for value in self.model.graph.inputs)


def look_into(path: Path) -> Inside:
    """Read the artefact at `path`, and the ONNX file that an engine was made from, which is beside it.

    Raises: ModelError where a file cannot be read, or the ONNX file is missing or another.
    """
    if not is_engine(path):
        return Inside(path, path, *load_model(path))
    record = sidecar.read_sidecar(path)
    source = path.with_name(record.onnx)
    if not source.is_file() or artefact_sha256(source) != record.onnx_sha256:
        raise ModelError(
            f"{path} cannot be built again to look into it.",
            f"its model, {record.onnx} with SHA-256 {record.onnx_sha256[:12]}, is not beside it.",
            "copy the ONNX file there.",
        )
    return Inside(path, source, *load_model(source), record)


def inner_tensors(inside: Inside, feeds: Arrays) -> Arrays:
    """Run the artefact once on `feeds` and return its tensors, outputs included; all become outputs of `inside.model`.

    An ONNX file runs in ONNX Runtime on the CPU. An engine cannot be looked into: one like it is built from the ONNX
    file its sidecar names, with every tensor marked as an output, and run. Marked tensors are not fused away, so a
    fault of a fused kernel may not show in it.

    Raises:
        HostError: an engine, and there is no GPU, or not the plugin library it was built with.
        ModelError: the model cannot be loaded.
    """
    if inside.record:
        require_gpu(f"looking into {inside.path}")
    _mark_all(inside.model)
    typed = {info.name: feeds[info.name].astype(info.dtype, copy=False) for info in inside.inputs}
    if inside.record:
        return _engine_tensors(inside, inside.record, typed)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(ir.to_proto(inside.model).SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, typed), strict=True))


def images_at_once(artefacts: Sequence[Inside]) -> int:
    """How many images to run the artefacts on: what their batch axis allows, and few, fewer of large images.

    Raises: UsageError where they have different fixed batches.
    """
    fixed, least, most = set(), 1, IMAGES
    for inside in artefacts:
        size = inside.inputs[0].shape[0]
        if isinstance(size, int):
            fixed.add(size)
        most = min(most, PIXELS // (inside.metadata.image.height * inside.metadata.image.width))
        if inside.record:
            profile = next(iter(inside.record.inputs.values()))
            least, most = max(least, (profile.minimum or (1,))[0]), min(most, (profile.maximum or (most,))[0])
    if len(fixed) > 1:
        sizes = " and ".join(map(str, sorted(fixed)))
        raise UsageError(f"the models take batches of {sizes}.", "", "compare exports of one batch size.")
    return fixed.pop() if fixed else max(least, most)


def _info(value: ir.Value) -> TensorInfo:
    shape = tuple(axis if isinstance(axis, int) else str(axis.value) for axis in value.shape or ())
    return TensorInfo(str(value.name), shape, value.dtype.numpy().name if value.dtype else "float32")


def _engine_tensors(inside: Inside, record: EngineRecord, feeds: Arrays) -> Arrays:
    with tempfile.TemporaryDirectory(prefix="infsa-deploy-") as folder:
        marked, engine = Path(folder) / inside.source.name, Path(folder) / "marked.engine"
        save_model(inside.model, inside.metadata, marked)
        build(marked, engine, _same_config(record), Listener())
        with closing(TrtSession(engine, trust=Trust(host_code=True))) as session:  # built above, in a folder of ours
            return session(feeds)


def _same_config(record: EngineRecord) -> EngineConfig:
    """What the engine was asked for, without the options that only change how it is kept."""
    precision: Precision | None = record.precision.asked  # type: ignore[assignment]  # written by us
    shapes = {
        kind: {name: shape for name, profile in record.inputs.items() if (shape := getattr(profile, kind))}
        for kind in ("minimum", "optimum", "maximum")
    }
    return EngineConfig(
        backend=record.flavour,
        targets=record.targets,
        precision=precision,
        plugins=record.plugins.mode == "plugins",
        min_shapes=shapes["minimum"],
        opt_shapes=shapes["optimum"],
        max_shapes=shapes["maximum"],
        workspace_bytes=record.options.get("workspace_bytes"),
        optimization_level=record.options.get("optimization_level"),
    )


def _mark_all(model: ir.Model) -> None:
    """Make every floating tensor of the main graph an output."""
    known = set(model.graph.outputs)
    inner = [value for node in model.graph for value in node.outputs if value.dtype in FLOATS and value not in known]
    model.graph.outputs.extend(inner)
