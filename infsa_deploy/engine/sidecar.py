"""The record beside an engine, `NAME.engine.json`, and the checks that every loader makes against it first."""

from __future__ import annotations

from pathlib import Path

from infsa_deploy.engine import plugin_library
from infsa_deploy.engine_records import EngineRecord, Gpu
from infsa_deploy.errors import HostError, ModelError
from infsa_deploy.files import sha256
from infsa_deploy.records import from_json

BUILD_AGAIN = "build it again with infsa-deploy build-engine."
AMPERE = 80


def sidecar_path(engine: Path) -> Path:
    """The engine's name with `.json` after it."""
    return Path(f"{engine}.json")


def read_sidecar(engine: Path) -> EngineRecord:
    """The record of the engine; ModelError when either file is missing or the record cannot be read."""
    path = sidecar_path(engine)
    if not engine.is_file():
        raise ModelError(f"{engine} does not exist.", "", "give the path that infsa-deploy build-engine printed.")
    if not path.is_file():
        raise ModelError(
            f"{engine} has no sidecar.",
            f"{path.name} is not beside it; a plan alone does not say what it is or where it runs.",
            f"copy {path.name} along with the engine, or {BUILD_AGAIN}",
        )
    try:
        return from_json(EngineRecord, path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read.", f"{type(error).__name__}: {error}", BUILD_AGAIN) from error


def check_file(engine: Path, record: EngineRecord) -> None:
    """Raise ModelError unless the engine is, byte for byte, the one its sidecar describes."""
    size = engine.stat().st_size
    if size < record.engine_bytes:
        raise ModelError(
            f"{engine} is truncated.",
            f"it has {size:,} bytes; the sidecar records {record.engine_bytes:,}.",
            f"copy it again, or {BUILD_AGAIN}",
        )
    if size != record.engine_bytes or sha256(engine) != record.engine_sha256:
        raise ModelError(
            f"{engine} is not the engine its sidecar describes.",
            "its hash is another.",
            f"copy both files again, or {BUILD_AGAIN}",
        )


def check_host(engine: Path, record: EngineRecord, gpu: Gpu, version: str) -> None:
    """Raise HostError unless this GPU and this version of the flavour can load the engine."""
    portable = bool(record.options.get("hardware_compatible")) and int(gpu.sm[2:]) >= AMPERE
    if gpu.sm not in record.targets and not portable:
        raise HostError(
            f"{engine} was built for {', '.join(record.targets)}; this GPU, {gpu.name}, is {gpu.sm}.",
            "an engine holds machine code for the GPUs it was built for.",
            f"infsa-deploy build-engine {record.onnx} --target {gpu.sm}",
        )
    if version != record.flavour_version and not _compatible(record, version):
        raise HostError(
            f"{engine} was built by {record.flavour} {record.flavour_version}; {version} is installed here.",
            "a plan loads in the version that wrote it.",
            f"install {record.flavour_version}, or {BUILD_AGAIN}",
        )


def find_plugins(engine: Path, record: EngineRecord, library: Path | None) -> Path:
    """The plugin library for an engine that does not hold it: `library`, the one of its name beside it, the installed.

    Raises:
        UsageError: `library` does not exist, or is no library.
        HostError: there is none, or not the one the engine was built with.
    """
    beside = engine.with_name(str(record.plugins.library))
    try:
        found = plugin_library.locate(library or (beside if beside.is_file() else None))
    except HostError as error:
        raise HostError(
            f"{engine} needs the plugin library {beside.name}.",
            f"it is not beside the engine; {error.what}",
            f"copy {beside.name} along with the engine.",
        ) from error
    check_plugins(engine, record, found)
    return found


def check_plugins(engine: Path, record: EngineRecord, library: Path) -> None:
    """Raise HostError unless `library` is the plugin library the engine was built with."""
    if sha256(library) != record.plugins.sha256:
        raise HostError(
            f"{engine} was built with another plugin library than {library}.",
            f"the sidecar records {record.plugins.library} with SHA-256 {(record.plugins.sha256 or '')[:12]}.",
            f"give that library, or {BUILD_AGAIN}",
        )


def _compatible(record: EngineRecord, version: str) -> bool:
    built, here = (tuple(int(part) for part in text.split(".")[:2]) for text in (record.flavour_version, version))
    return bool(record.options.get("version_compatible")) and here >= built and here[0] == built[0]
