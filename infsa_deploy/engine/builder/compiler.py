"""The process that drives TensorRT: parse, read, prove, build, write. Nothing else loads the builder."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infsa_deploy.config import EngineConfig
from infsa_deploy.engine.builder.listeners import Messages, make_logger, make_monitor
from infsa_deploy.engine.builder.network import NetworkFacts, network_inputs, read_network
from infsa_deploy.engine.builder.proof import check_creators, check_fields, check_plugins, check_precision
from infsa_deploy.engine.flavor import Flavor
from infsa_deploy.engine.shapes import ShapeRange
from infsa_deploy.errors import BuildError, HostError, ModelError

ACTIVATION_LINE = re.compile(r"Total Activation Memory: (\d+)")
NO_ROOM = ("could not find any implementation", "out of memory", "outofmemory", "insufficient memory")


@dataclass(frozen=True)
class Request:
    """One build.

    Attributes:
        plan: where to write, or None to stop before building.
        targets: architectures, for a flavour that builds ahead of time.
        library: the plugin library, or None to build from the function bodies.
        plugins: number of custom nodes by `namespace::op::version`.
        bodies: names of the custom nodes that no plugin can run.
        attributes: names of the attributes that those nodes carry for their plugin, likewise.
        kept_fp32: names of the nodes left in fp32 although another type was asked.
        ranges: shapes by input.
        timing_cache: contents of the timing cache, or None for no cache.
    """

    flavor: Flavor
    model: Path
    plan: Path | None
    targets: tuple[str, ...]
    library: Path | None
    plugins: Mapping[str, int]
    bodies: Collection[str]
    attributes: Mapping[str, Collection[str]]
    kept_fp32: frozenset[str]
    ranges: Mapping[str, ShapeRange]
    config: EngineConfig
    timing_cache: bytes | None
    verbose: bool


@dataclass(frozen=True)
class Facts:
    """What is known before the build: the flavour's version and the parsed network."""

    version: str
    network: NetworkFacts


@dataclass(frozen=True)
class Outcome:
    """What a build leaves besides the plan."""

    activation_bytes: int | None
    timing_cache: bytes | None
    opened: bool


def compile_plan(request: Request, send: Callable[[str, Any], None]) -> Outcome | None:
    """Carry out `request`; None when it asks for no plan.

    Args:
        send: called with ("phase", text), ("log", text) and once ("facts", Facts).

    Raises:
        HostError: the flavour's version is too old.
        ModelError: TensorRT cannot parse the model.
        BuildError: plugins or types are not those asked for, or the build fails.
    """
    flavor, config = request.flavor, request.config
    send("phase", f"loading {flavor.title}")
    trt = importlib.import_module(flavor.module)
    check_version(flavor, trt.__version__)
    messages = Messages(send, verbose=request.verbose)
    logger = make_logger(trt, messages)
    builder = trt.Builder(logger)
    if request.library:
        _load_plugins(builder, request)
    network, _parser = _parse(trt, builder, logger, request, send)  # the parser owns the network's weights
    largest = {name: shapes.maximum for name, shapes in request.ranges.items()}
    facts = Facts(trt.__version__, read_network(trt, network, largest))
    if request.library:
        check_plugins(request.plugins, facts.network.plugins, "the parsed network")
    check_precision(config.precision, facts.network.products, request.kept_fp32)
    send("facts", facts)
    if request.plan is None:
        return None
    settings = _configure(trt, builder, network, request, messages, send)
    send("phase", "building the engine")
    plan = builder.build_serialized_network(network, settings)
    if plan is None:
        raise _failure(flavor, messages)
    send("phase", "writing the engine")
    request.plan.write_bytes(plan)
    opened = flavor.targets is None and bool(request.library)
    if opened:
        _check_engine_layers(trt, logger, plan, request.plugins)
    cache = settings.get_timing_cache().serialize() if request.timing_cache is not None else None
    found = next((int(match[1]) for line in messages.lines if (match := ACTIVATION_LINE.search(line))), None)
    return Outcome(found, bytes(cache) if cache is not None else None, opened)


def check_version(flavor: Flavor, version: str) -> None:
    """Raise HostError for a version older than the flavour's oldest."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < flavor.minimum:
        oldest = ".".join(map(str, flavor.minimum))
        raise HostError(f"{flavor.title} {version} is too old.", f"{oldest} is the oldest that works.", flavor.install)


def _load_plugins(builder: Any, request: Request) -> None:
    library, registry = request.library, builder.get_plugin_registry()
    assert library is not None
    if registry.load_library(str(library)) is None:
        raise BuildError(
            f"{request.flavor.title} cannot load {library.name}.",
            "it is not a plugin library for this version, or needs a library that is missing; see the log.",
            f"ldd {library}",
        )
    creators = {f"{c.plugin_namespace}::{c.name}::{c.plugin_version}": c for c in registry.all_creators}
    check_creators(request.plugins, creators, library)
    fields = {plugin: [field.name for field in creators[plugin].field_names] for plugin in request.plugins}
    check_fields(request.attributes, fields, library)


def _parse(trt: Any, builder: Any, logger: Any, request: Request, send: Callable[[str, Any], None]) -> tuple[Any, Any]:
    send("phase", "parsing the model")
    strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(strongly_typed)
    parser = trt.OnnxParser(network, logger)
    if request.bodies or (request.plugins and not request.library):
        import onnx

        from infsa_deploy.engine.builder.bodies import expand_bodies

        only = request.bodies if request.library else None
        expanded = expand_bodies(onnx.load(str(request.model), load_external_data=False), only)
        parsed = parser.parse(expanded.SerializeToString(), str(request.model))
    else:
        parsed = parser.parse_from_file(str(request.model))
    if not parsed:
        raise _parse_error(request.flavor, [parser.get_error(index) for index in range(parser.num_errors)])
    return network, parser


def _parse_error(flavor: Flavor, errors: list[Any]) -> ModelError:
    if not errors:
        return ModelError(f"{flavor.title} cannot parse the model.", "it gives no reason.", "see the log.")
    first = errors[0]
    return ModelError(
        f"{flavor.title} cannot parse node {first.node_name()!r}, op {first.node_operator()}.",
        " ".join(first.desc().split()),
        "replace that op in the model, or export it with infsa-deploy export.",
    )


def _configure(
    trt: Any, builder: Any, network: Any, request: Request, messages: Messages, send: Callable[[str, Any], None]
) -> Any:
    config, settings = request.config, builder.create_builder_config()
    if request.flavor.targets is not None:
        settings.num_compute_capabilities = len(request.targets)
        for index, target in enumerate(request.targets):
            settings.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), index)
    profile = builder.create_optimization_profile()
    for tensor in network_inputs(network):
        shapes = request.ranges[tensor.name]
        profile.set_shape(tensor.name, shapes.minimum, shapes.optimum, shapes.maximum)
    settings.add_optimization_profile(profile)
    settings.progress_monitor = make_monitor(trt, send)
    settings.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if config.workspace_bytes:
        settings.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, config.workspace_bytes)
    if config.optimization_level is not None:
        settings.builder_optimization_level = config.optimization_level
    for option, flag in (("version_compatible", "VERSION_COMPATIBLE"), ("strip", "STRIP_PLAN"), ("refit", "REFIT")):
        if getattr(config, option):
            settings.set_flag(getattr(trt.BuilderFlag, flag))
    if config.hardware_compatible:
        settings.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    if request.library and config.embed_plugins is not False:
        settings.plugins_to_serialize = [str(request.library)]
    if request.timing_cache is not None:
        _use_timing_cache(settings, request, messages)
    return settings


def _use_timing_cache(settings: Any, request: Request, messages: Messages) -> None:
    start = len(messages.warnings)
    cache = settings.create_timing_cache(request.timing_cache)
    accepted = cache is not None and settings.set_timing_cache(cache, False)
    complaints = [line for line in messages.warnings[start:] if "cache" in line.lower()]
    if not accepted or complaints:
        raise BuildError(
            f"the timing cache {request.config.timing_cache} is stale or foreign.",
            (complaints or ["it is of another GPU model or TensorRT version."])[-1],
            "delete it, or name another file; a cache holds for one GPU model and version.",
        )


def _check_engine_layers(trt: Any, logger: Any, plan: Any, expected: Mapping[str, int]) -> None:
    """Open the engine on the GPU that built it and count its plugin layers by op."""
    import json

    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise BuildError("the engine just built does not open.", "", "see the log beside the engine.")
    report = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    layers = [str(layer.get("LayerType", "")) for layer in json.loads(report)["Layers"] if isinstance(layer, dict)]
    found = sum(layer.startswith("Plugin") for layer in layers)
    check_plugins({"plugins": sum(expected.values())}, Counter({"plugins": found}), "the engine")


def _failure(flavor: Flavor, messages: Messages) -> BuildError:
    reason = messages.errors[-1] if messages.errors else "it gives no reason"
    if any(sign in line.lower() for line in messages.errors for sign in NO_ROOM):
        fix = "lower the largest shape with --max-shapes, or free GPU memory; --dry-run predicts the memory needed."
    else:
        fix = "see the log beside the engine; -v shows all of it."
    return BuildError(f"{flavor.title} could not build the engine.", reason, fix)
