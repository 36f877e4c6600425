"""Engines as tables for a terminal of 80 columns."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from infsa_deploy.cli.output.tables import folding_table
from infsa_deploy.files import format_bytes
from infsa_deploy.records.engine import EngineForecast, EngineInspection, EngineRecord, TensorProfile


def engine_table(engine: EngineRecord | EngineForecast, title: str) -> Table:
    """One fact a row, of an engine or of what it will be."""
    precision, plugins = engine.precision, engine.plugins
    total = sum(precision.products.values())
    rows = {
        "built by" if isinstance(engine, EngineRecord) else "builder": f"{engine.flavour} {engine.flavour_version}",
        "for": ", ".join(engine.targets),
        "inputs": "\n".join(_profile(name, profile) for name, profile in engine.inputs.items()),
        "outputs": "\n".join(_profile(name, profile) for name, profile in engine.outputs.items()),
        "asked for": precision.asked or "the model's own types",
        "products": ", ".join(f"{count} of {total} in {kind}" for kind, count in precision.products.items()),
        "layers": ", ".join(f"{percent}% {kind}" for kind, percent in precision.layers_percent.items()),
        "custom ops": plugins.mode,
        "memory predicted": _size(engine.activation_bytes_predicted) + " of activations at the largest shapes",
    }
    if plugins.library:
        counted = ", ".join(f"{count} {name}" for name, count in plugins.layers.items())
        rows["custom ops"] = f"plugins, counted in the {plugins.proof}: {counted}"
    if plugins.bodies:
        rows["from bodies"] = "\n".join(f"{name}: {why}" for name, why in plugins.bodies.items())
    if isinstance(engine, EngineRecord):
        if plugins.library:
            rows["plugin library"] = f"{plugins.library}, {'in the plan' if plugins.embedded else 'beside the engine'}"
        rows |= _built_rows(engine)
    else:
        rows["weights"] = _size(engine.weights_bytes)
    table = folding_table("", title)
    for name, text in rows.items():
        table.add_row(name, Text(text))
    return table


def inspection_table(inspection: EngineInspection, title: str) -> Table:
    """The sidecar, one fact a row, and what TensorRT says of the opened engine."""
    table = engine_table(inspection.engine, title)
    if inspection.layers is None:
        table.add_row("engine", Text(f"not opened: {inspection.unopened}"))
        return table
    table.add_row("engine", Text(", ".join(f"{count} {kind}" for kind, count in inspection.layers.items())))
    types = ", ".join(f"{count} {kind}" for kind, count in (inspection.types or {}).items())
    table.add_row("types of outputs", Text(types or "not told"))
    table.add_row("device memory", Text(_size(inspection.device_memory_bytes)))
    return table


def _built_rows(engine: EngineRecord) -> dict[str, str]:
    return {
        "memory reported": _size(engine.activation_bytes) + " of activations",
        "built on": engine.built_on.name if engine.built_on else "a machine without a GPU",
        "built in": f"{engine.build_s:.1f} s, {format_bytes(engine.engine_bytes)}",
        "options": ", ".join(f"{name} {value}" for name, value in engine.options.items()) or "none",
        "from": f"{engine.onnx}, sha256 {engine.onnx_sha256}",
        "written by": f"infsa-deploy {engine.tool_version}",
    }


def _profile(name: str, profile: TensorProfile) -> str:
    shapes = [shape for shape in (profile.minimum, profile.optimum, profile.maximum) if shape]
    spelled = ["x".join(map(str, shape)) for shape in shapes or [profile.shape]]
    lowered = f"\n{profile.lowered}" if profile.lowered else ""
    return f"{name}: {profile.dtype} {' / '.join(spelled)}{lowered}"


def _size(count: int | None) -> str:
    return "not known" if count is None else format_bytes(count)
