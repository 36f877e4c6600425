"""From an export to an engine beside it: retype the graph if a type was asked for, then hand it to the builder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from infsa_deploy.config import EngineConfig
from infsa_deploy.engine.build import Listener, Origin, build_engine, check_request, forecast_engine
from infsa_deploy.errors import UsageError
from infsa_deploy.files import check_apart, check_target, unwritable
from infsa_deploy.records.engine import EngineForecast, EngineRecord

ARTIFACTS = Path("artifacts")
LOW_TYPES: dict[str, Literal["fp16", "bf16"]] = {"fp16": "fp16", "bf16": "bf16", "int8": "fp16"}


def newest_export() -> Path:
    """The ONNX file written last under `artifacts/`; UsageError where there is none."""
    exports = sorted(ARTIFACTS.glob("*.onnx"), key=lambda path: path.stat().st_mtime)
    if not exports:
        raise UsageError(
            "there is no exported model here.",
            f"no model was named, and {ARTIFACTS}/ holds no .onnx file.",
            "run infsa-deploy export --variant linear first, or name a model.",
        )
    return exports[-1]


def default_engine(model: Path, config: EngineConfig) -> Path:
    """`NAME[_fp16][_bodies].engine` beside the model."""
    parts = [model.stem, config.precision, None if config.plugins else "bodies"]
    return model.with_name(f"{'_'.join(part for part in parts if part)}.engine")


def build(model: Path, output: Path, config: EngineConfig, listener: Listener) -> EngineRecord:
    """Build an engine from the export `model`; raises as engine.build_engine, ModelError for a graph not retyped."""
    if output.resolve() == model.resolve():
        why = "it is the model itself, and an engine is built from an ONNX file."
        raise UsageError(f"{output} would be replaced.", why, "give an ONNX file, or another -o FILE.")
    inputs = [model, model.with_name(f"{model.name}.data"), config.plugin_library]
    check_target(output, [*inputs, config.timing_cache], beside=[".json", ".log"])
    if config.timing_cache:
        check_apart([config.timing_cache], inputs)
    with _retyped(model, config, listener) as (path, origin):
        return build_engine(path, output, config, listener, origin)


def forecast(model: Path, config: EngineConfig, listener: Listener) -> EngineForecast:
    """All that can be told of the engine without building it; writes nothing. Raises as `build`."""
    with _retyped(model, config, listener) as (path, origin), tempfile.TemporaryDirectory() as folder:
        return forecast_engine(path, Path(folder) / "tensorrt.log", config, listener, origin)


@contextmanager
def _retyped(model: Path, config: EngineConfig, listener: Listener) -> Iterator[tuple[Path, Origin]]:
    """A copy of `model` in the low type, kept for the length of the block; `model` itself where none was asked.

    A TensorRT network is strongly typed: its types are those of the ONNX file, and no flag changes them.
    """
    precision = config.precision
    low = LOW_TYPES.get(precision or "")
    if low is None:
        yield model, Origin(model)
        return
    import onnx_ir as ir

    from infsa_deploy.graph.precision.retype import retype
    from infsa_deploy.graph.store import EXTERNAL_DATA_FROM, weights_bytes

    check_request(model, config)
    listener.phase(f"retyping the model to {low}")
    if low != precision:
        listener.note(f"{precision} where the model has Q/DQ nodes, {low} elsewhere")
    graph = ir.load(model)
    report = retype(graph, low)
    for loss in report.losses:
        lost = f"{loss.to_zero} of {loss.elements} elements became zero, {loss.saturated} were cut to the largest"
        listener.note(f"warning: weight {loss.name}: {lost}")
    for reason in dict.fromkeys(report.kept_fp32.values()):
        nodes = [name for name, given in report.kept_fp32.items() if given == reason]
        listener.note(f"left in fp32: {', '.join(nodes[:3])}{', ...' if len(nodes) > 3 else ''}: {reason}")
    external = weights_bytes(graph) > EXTERNAL_DATA_FROM
    with tempfile.TemporaryDirectory(prefix="infsa-deploy-") as folder:
        path = Path(folder) / model.name
        try:
            ir.save(graph, path, external_data=f"{path.name}.data" if external else None)
        except OSError as error:
            raise unwritable(path, error) from error
        yield path, Origin(model, report.kept_fp32)
