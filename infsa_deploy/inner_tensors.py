"""What an artefact computes on the way to its outputs: every floating tensor of its main graph, by name."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime

from infsa_deploy.build import build
from infsa_deploy.config import EngineConfig, Precision
from infsa_deploy.engine import sidecar
from infsa_deploy.engine.build import Listener
from infsa_deploy.engine.driver import require_gpu
from infsa_deploy.engine_records import EngineRecord
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.store import load_model, save_model
from infsa_deploy.files import artefact_sha256
from infsa_deploy.runtime.artefact import is_engine
from infsa_deploy.runtime.protocol import Arrays
from infsa_deploy.runtime.trt import TrtSession

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
IMAGES = 4  # all tensors of all layers are held at once
PIXELS = IMAGES * 224 * 224


def inner_tensors(path: Path, images: npt.NDArray[np.float32]) -> Arrays:
    """Run the artefact at `path` once on `images` [B, C, H, W] and return its tensors, outputs included.

    An ONNX file runs in ONNX Runtime on the CPU. An engine cannot be looked into: one like it is built from the ONNX
    file its sidecar names, with every tensor marked as an output, and run. Marked tensors are not fused away, so a
    fault of a fused kernel may not show in it.

    Raises:
        HostError: an engine, and there is no GPU, or not the plugin library it was built with.
        ModelError: a file cannot be loaded, or the ONNX file of an engine is not beside it.
    """
    if is_engine(path):
        return _engine_tensors(path, images)
    model, _ = load_model(path)
    _mark_all(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    (image,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]
    dtype = np.float16 if image.type == "tensor(float16)" else np.float32
    return dict(zip(names, session.run(names, {image.name: images.astype(dtype)}), strict=True))


def images_at_once(paths: Sequence[Path]) -> int:
    """How many images to run the artefacts on: what their batch axis allows, and few, fewer of large images.

    Raises: UsageError where they have different fixed batches; ModelError as source_model.
    """
    fixed, least, most = set(), 1, IMAGES
    for path in paths:
        model, metadata = load_model(source_model(path))
        shape = model.graph.inputs[0].shape
        if shape is not None and isinstance(shape[0], int):
            fixed.add(shape[0])
        most = min(most, PIXELS // (metadata.image.height * metadata.image.width))
        if is_engine(path):
            profile = next(iter(sidecar.read_sidecar(path).inputs.values()))
            least, most = max(least, (profile.minimum or (1,))[0]), min(most, (profile.maximum or (most,))[0])
    if len(fixed) > 1:
        sizes = " and ".join(map(str, sorted(fixed)))
        raise UsageError(f"the models take batches of {sizes}.", "", "compare exports of one batch size.")
    return fixed.pop() if fixed else max(least, most)


def source_model(path: Path) -> Path:
    """The ONNX file that an artefact was made from: an engine's, found beside it; an ONNX file is its own.

    Raises: ModelError where it is missing or another.
    """
    if not is_engine(path):
        return path
    record = sidecar.read_sidecar(path)
    source = path.with_name(record.onnx)
    if not source.is_file() or artefact_sha256(source) != record.onnx_sha256:
        raise ModelError(
            f"{path} cannot be built again to look into it.",
            f"its model, {record.onnx} with SHA-256 {record.onnx_sha256[:12]}, is not beside it.",
            "copy the ONNX file there.",
        )
    return source


def _engine_tensors(path: Path, images: npt.NDArray[np.float32]) -> Arrays:
    require_gpu(f"looking into {path}")
    record, source = sidecar.read_sidecar(path), source_model(path)
    model, metadata = load_model(source)
    _mark_all(model)
    with tempfile.TemporaryDirectory(prefix="infsa-deploy-") as folder:
        marked, engine = Path(folder) / source.name, Path(folder) / "marked.engine"
        save_model(model, metadata, marked)
        build(marked, engine, _same_config(record), Listener())
        session = TrtSession(engine)
        (info,) = session.inputs
        tensors = session({info.name: images.astype(info.dtype)})
        session.close()
    return tensors


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
