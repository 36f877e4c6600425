"""From an ONNX file to an engine and its sidecar, or to a forecast of both."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infsa_deploy.config import EngineConfig
from infsa_deploy.engine import plugin_library
from infsa_deploy.engine.builder.child import run_compiler
from infsa_deploy.engine.builder.compiler import Facts, Outcome, Request
from infsa_deploy.engine.builder.proof import plan_names_plugins
from infsa_deploy.engine.driver import find_gpu
from infsa_deploy.engine.flavor import OPTIONAL, check_options, choose, choose_targets
from infsa_deploy.engine.onnx_file import OnnxFile, check_for_engines, read_onnx
from infsa_deploy.engine.shapes import ShapeRange, resolve_shapes, spell
from infsa_deploy.engine.sidecar import runs_host_code, sidecar_path, sidecar_text
from infsa_deploy.errors import BuildError, HostError
from infsa_deploy.files import artefact_sha256, check_target, format_bytes, sha256, written_whole
from infsa_deploy.records.engine import EngineForecast, EngineRecord, Gpu, PluginUse, PrecisionFound, TensorProfile
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.version import __version__


def _ignore(text: str) -> None:
    pass


@dataclass(frozen=True)
class Listener:
    """What a build tells while it runs: the phase begun, a remark for the user, a line of TensorRT's log.

    With `verbose`, TensorRT logs all it has, to `log` as well as to the file.
    """

    phase: Callable[[str], None] = _ignore
    note: Callable[[str], None] = _ignore
    log: Callable[[str], None] = _ignore
    verbose: bool = False


@dataclass(frozen=True)
class Origin:
    """The ONNX file a build is known by, where the file built is a retyped copy of it."""

    path: Path
    kept_fp32: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Build:
    """One build: what it starts from, and the facts that arrive while it runs."""

    model: OnnxFile
    request: Request
    gpu: Gpu | None
    origin: Origin
    listener: Listener
    facts: Facts | None = None

    def receive(self, kind: str, value: Any) -> None:
        if kind == "facts":
            self.facts = value
            self._tell_memory(value.network.activation_bytes)
        else:
            getattr(self.listener, kind)(value)

    def _tell_memory(self, needed: int | None) -> None:
        if needed is None:
            return
        largest = ", ".join(f"{name} {spell(shapes.maximum)}" for name, shapes in self.request.ranges.items())
        self.listener.note(
            f"predicted memory at {largest}: {format_bytes(needed)} of activations, "
            f"{format_bytes(self.model.weights_bytes)} of weights"
        )
        if self.gpu and needed + self.model.weights_bytes > self.gpu.memory_bytes:
            self.listener.note(
                f"warning: {self.gpu.name} has {format_bytes(self.gpu.memory_bytes)}; unless the builder fuses the "
                "largest tensors away it will fail: lower the largest shape with --max-shapes"
            )


def build_engine(
    model: Path, output: Path, config: EngineConfig, listener: Listener | None = None, origin: Origin | None = None
) -> EngineRecord:
    """Build `output` and its sidecar from the ONNX file `model`; TensorRT's log goes to `output` with `.log` after it.

    Raises:
        UsageError: a target, shape or option that the flavour or the model does not have.
        HostError: a package, GPU or the plugin library is missing; the files cannot be written.
        ModelError: the model cannot be read or parsed.
        BuildError: plugins or types are not those asked for, or TensorRT fails.
    """
    with written_whole(output) as scratch:
        build = _prepare(model, config, listener or Listener(), origin, scratch)
        started = time.monotonic()
        outcome = run_compiler(build.request, output.with_name(f"{output.name}.log"), build.receive)
        assert outcome is not None
        assert build.facts is not None
        embedded = _check_plan(scratch, build, config)
        record = _record(build, outcome, scratch, embedded, time.monotonic() - started)
        sidecar_path(scratch).write_text(sidecar_text(record), encoding="utf-8")
    if runs_host_code(record):
        build.listener.note(f"it holds code that runs on the processor; to load it give --trust {record.engine_sha256}")
    if config.timing_cache and outcome.timing_cache is not None:
        with written_whole(config.timing_cache) as scratch:
            scratch.write_bytes(outcome.timing_cache)
    return record


def forecast_engine(
    model: Path, log: Path, config: EngineConfig, listener: Listener | None = None, origin: Origin | None = None
) -> EngineForecast:
    """Do all of `build_engine` up to the build: parse, read types and plugins, predict memory.

    Args:
        log: file for TensorRT's log.
    Raises: as build_engine.
    """
    build = _prepare(model, config, listener or Listener(), origin, None)
    run_compiler(build.request, log, build.receive)
    assert build.facts is not None
    return EngineForecast(
        model=str(build.origin.path),
        flavour=build.request.flavor.name,
        flavour_version=build.facts.version,
        targets=build.request.targets,
        inputs=_inputs(build),
        outputs=_outputs(build),
        precision=_precision(build),
        plugins=_plugins(build, embedded=False, proof="network"),
        activation_bytes_predicted=build.facts.network.activation_bytes,
        weights_bytes=build.model.weights_bytes,
    )


def check_request(model: Path, config: EngineConfig) -> None:
    """Raise what build_engine would raise before it starts the builder: worth asking before the model is retyped."""
    _prepare(model, config, Listener(), None, None)


def _prepare(model: Path, config: EngineConfig, listener: Listener, origin: Origin | None, plan: Path | None) -> _Build:
    origin = origin or Origin(model)
    gpu = find_gpu()
    flavor = choose(config.backend, gpu)
    check_options(flavor, config, gpu)
    targets = choose_targets(flavor, config.targets, gpu)
    if not config.targets:
        listener.note(f"building for {targets[0]}" + (f", {gpu.name}" if gpu else ": no GPU here, sm80 is the A100"))
    onnx_file = read_onnx(model)
    check_for_engines(onnx_file)
    library = None
    if onnx_file.plugins and config.plugins:
        library = plugin_library.locate(config.plugin_library)
        plugin_library.check_targets(library, targets)
    elif onnx_file.plugins:
        listener.note("plugins off: the custom ops are built from their function bodies")
    for name, why in onnx_file.bodies.items():
        listener.note(
            f"{name} is built from its function body, without the plugin: {why}; for the plugin, choose another "
            "number of heads"
        )
    image = onnx_file.metadata.image if onnx_file.metadata else None
    ranges = resolve_shapes(onnx_file.inputs, config, (image.height, image.width) if image else None)
    listener.note("shapes: " + "; ".join(f"{name} {_spell_range(shapes)}" for name, shapes in ranges.items()))
    for reason in filter(None, (shapes.lowered for shapes in ranges.values())):
        listener.note(reason)
    request = Request(
        flavor=flavor,
        model=model,
        plan=plan,
        targets=targets,
        library=library,
        plugins=onnx_file.plugins,
        bodies=frozenset(onnx_file.bodies),
        attributes=onnx_file.attributes,
        kept_fp32=frozenset(origin.kept_fp32),
        ranges=ranges,
        config=config,
        timing_cache=_read_cache(config.timing_cache),
        verbose=listener.verbose,
    )
    return _Build(onnx_file, request, gpu, origin, listener)


def _read_cache(path: Path | None) -> bytes | None:
    """The cache's contents; empty for a file that does not exist yet, which starts a new cache."""
    if path is None:
        return None
    check_target(path)
    try:
        return path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise HostError(f"cannot read the timing cache {path}.", str(error), "name another file.") from error


def _check_plan(plan: Path, build: _Build, config: EngineConfig) -> bool:
    """Check that the plan names the plugins; return whether it holds their library."""
    library = build.request.library
    if library is None:
        return False
    if not plan_names_plugins(plan, build.request.plugins, library):
        raise BuildError(
            "the plan does not name the plugins it was built with.",
            f"{', '.join(build.request.plugins)} are not all in it.",
            "see the log beside the engine, and report this as a bug.",
        )
    embedded = plugin_library.contains(plan, library)
    if config.embed_plugins and not embedded:
        raise BuildError(
            f"the plan does not hold {library.name}.",
            f"{build.request.flavor.title} did not embed it.",
            "add --version-compatible, or take --no-embed-plugins and ship the library beside the engine.",
        )
    if config.embed_plugins is None and not embedded:
        build.listener.note(f"the plan does not hold {library.name}: ship the library beside the engine")
    return embedded


def _record(build: _Build, outcome: Outcome, plan: Path, embedded: bool, build_s: float) -> EngineRecord:
    facts, config = build.facts, build.request.config
    assert facts is not None
    cache = outcome.timing_cache
    options = ("workspace_bytes", "optimization_level", *OPTIONAL[1:])
    return EngineRecord(
        tool_version=__version__,
        flavour=build.request.flavor.name,
        flavour_version=facts.version,
        targets=build.request.targets,
        built_on=build.gpu,
        engine_sha256=sha256(plan),
        engine_bytes=plan.stat().st_size,
        onnx=build.origin.path.name,
        onnx_sha256=artefact_sha256(build.origin.path),
        inputs=_inputs(build),
        outputs=_outputs(build),
        precision=_precision(build),
        plugins=_plugins(build, embedded=embedded, proof="engine" if outcome.opened else "network and plan"),
        options={name: value for name in options if (value := getattr(config, name)) not in (None, False)},
        timing_cache_sha256=hashlib.sha256(cache).hexdigest() if cache is not None else None,
        build_s=round(build_s, 3),
        activation_bytes_predicted=facts.network.activation_bytes,
        activation_bytes=outcome.activation_bytes,
        metadata=_metadata(build),
    )


def _metadata(build: _Build) -> ModelMetadata | None:
    """The model's metadata, with the type that was asked of weights and activations."""
    metadata, asked = build.model.metadata, build.request.config.precision
    return replace(metadata, dtype=asked) if metadata and asked in ("fp16", "bf16") else metadata


def _inputs(build: _Build) -> dict[str, TensorProfile]:
    assert build.facts is not None
    ranges = build.request.ranges
    return {
        name: TensorProfile(dtype, shape, given.minimum, given.optimum, given.maximum, given.lowered)
        for name, (dtype, shape) in build.facts.network.inputs.items()
        for given in (ranges[name],)
    }


def _outputs(build: _Build) -> dict[str, TensorProfile]:
    assert build.facts is not None
    return {name: TensorProfile(dtype, shape) for name, (dtype, shape) in build.facts.network.outputs.items()}


def _precision(build: _Build) -> PrecisionFound:
    assert build.facts is not None
    layers, products = build.facts.network.layers, build.facts.network.products
    return PrecisionFound(
        asked=build.request.config.precision,
        products=dict(Counter(kind for _, kind in products)),
        layers_percent={kind: round(100 * count / layers.total(), 1) for kind, count in layers.most_common()},
        kept_fp32=dict(build.origin.kept_fp32),
    )


def _plugins(build: _Build, *, embedded: bool, proof: str) -> PluginUse:
    assert build.facts is not None
    library = build.request.library
    if library is None:
        mode = "bodies" if build.model.plugins or build.model.bodies else "none"
        return PluginUse(mode, None, None, False, {}, None, build.model.bodies)
    layers = dict(build.facts.network.plugins)
    return PluginUse("plugins", library.name, sha256(library), embedded, layers, proof, build.model.bodies)


def _spell_range(shapes: ShapeRange) -> str:
    if shapes.minimum == shapes.maximum:
        return spell(shapes.maximum)
    return f"{spell(shapes.minimum)} to {spell(shapes.maximum)}, best at {spell(shapes.optimum)}"
