"""The record beside an engine, `NAME.engine.json`, and the checks that every loader makes against it first."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from infsa_deploy.config import Trust
from infsa_deploy.engine import plugin_library, sidecar_schema
from infsa_deploy.errors import BuildError, HostError, ModelError, UsageError
from infsa_deploy.files import sha256
from infsa_deploy.records.codec import decode, to_json
from infsa_deploy.records.engine import EngineRecord, Gpu

BUILD_AGAIN = "build it again with infsa-deploy build-engine."
AMPERE = 80
MOST_BYTES = 1 << 24  # of a sidecar


def sidecar_path(engine: Path) -> Path:
    """The engine's name with `.json` after it."""
    return Path(f"{engine}.json")


def read_sidecar(engine: Path) -> EngineRecord:
    """The record of the engine; ModelError when either file is missing or the record cannot be read."""
    path = sidecar_path(engine)
    if engine.is_dir():
        raise ModelError(f"{engine} is a folder.", "an engine is a file.", "give the path of the file in it.")
    if not engine.is_file():
        raise ModelError(f"{engine} does not exist.", "", "give the path that infsa-deploy build-engine printed.")
    if not path.is_file():
        raise ModelError(
            f"{engine} has no sidecar.",
            f"{path.name} is not beside it; a plan alone does not say what it is or where it runs.",
            f"copy {path.name} along with the engine, or {BUILD_AGAIN}",
        )
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        return decode(EngineRecord, sidecar_schema.parse(content))
    except ValueError as error:
        raise ModelError(f"{path} cannot be read.", str(error), BUILD_AGAIN) from error


def sidecar_text(record: EngineRecord) -> str:
    """The sidecar of a new engine; BuildError where no loader would read it."""
    text = to_json(record)
    try:
        sidecar_schema.parse(text.encode())
    except ValueError as error:
        what = "the engine's sidecar would not be read again."
        raise BuildError(what, str(error), "give the model, its inputs and classes such names and sizes.") from error
    return text


def runs_host_code(record: EngineRecord) -> bool:
    """Whether the plan itself holds code that runs on the processor: a plugin library, or a runtime of its own."""
    return record.plugins.embedded or bool(record.options.get("version_compatible"))


def check_file(engine: Path, record: EngineRecord) -> None:
    """Raise ModelError unless the engine is, byte for byte, the one its sidecar describes."""
    _check_length(engine, engine.stat().st_size, record)
    _check_hash(engine, sha256(engine), record)


def read_plan(engine: Path, record: EngineRecord) -> bytes:
    """The engine's bytes, read once: what was checked is what is loaded. Raises as check_file."""
    with engine.open("rb") as file:
        _check_length(engine, os.fstat(file.fileno()).st_size, record)
        plan = file.read(record.engine_bytes + 1)
    _check_hash(engine, hashlib.sha256(plan).hexdigest(), record)
    return plan


def _check_length(engine: Path, size: int, record: EngineRecord) -> None:
    if size < record.engine_bytes:
        raise ModelError(
            f"{engine} is truncated.",
            f"it has {size:,} bytes; the sidecar records {record.engine_bytes:,}.",
            f"copy it again, or {BUILD_AGAIN}",
        )
    if size > record.engine_bytes:
        _check_hash(engine, "", record)


def _check_hash(engine: Path, found: str, record: EngineRecord) -> None:
    if found != record.engine_sha256:
        raise ModelError(
            f"{engine} is not the engine its sidecar describes.",
            "its hash is another.",
            f"copy both files again, or {BUILD_AGAIN}",
        )


def check_trust(file: Path, found: str, trust: Trust, *, host_code: bool) -> None:
    """Raise unless the caller lets a file with the hash `found` be loaded, which may run code on the processor.

    Args:
        host_code: whether it does.

    Raises:
        ModelError: hashes of trusted files are given, and its is not among them.
        UsageError: it runs code on the processor, and the caller does not allow that.
    """
    if found in (text.lower() for text in trust.sha256):
        return
    if trust.sha256:
        raise ModelError(
            f"{file} is not among the files that are trusted.",
            f"its SHA-256 is {found}.",
            "add that to trusted_sha256 (--trust), if it is the file you know.",
        )
    if host_code and not trust.host_code:
        raise UsageError(
            f"{file} holds code that runs on the processor.",
            "its sidecar is not signed, and cannot tell who wrote it.",
            "give its SHA-256 from a source you trust in trusted_sha256 (--trust), "
            "or set allow_host_code (--allow-host-code).",
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


def find_plugins(engine: Path, record: EngineRecord, library: Path | None, trust: Trust | None = None) -> Path:
    """The plugin library for an engine that does not hold it: `library`, the one of its name beside it, the installed.

    Args:
        trust: whether one beside the engine may be loaded; what is returned is then a copy that nobody else can write.
            None where it is not loaded but passed on. A library that is named or installed is trusted.

    Raises:
        UsageError: `library` does not exist, or is no library.
        UsageError, ModelError: see check_trust.
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
    if trust is None or library or found != beside.resolve():
        check_plugins(engine, record, found)
        return found
    content = found.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    check_trust(beside, digest, trust, host_code=True)
    _check_plugins(engine, record, found, digest)
    return _private_copy(content, digest, found.name)


COPIES: dict[str, tempfile.TemporaryDirectory[str]] = {}  # by hash; a library is mapped for as long as the process is


def _private_copy(content: bytes, digest: str, name: str) -> Path:
    """The library in a folder of this process alone: the loader opens files by name, and sees what was checked."""
    if digest not in COPIES:
        COPIES[digest] = tempfile.TemporaryDirectory(prefix="infsa-deploy-")
        Path(COPIES[digest].name, name).write_bytes(content)
    return Path(COPIES[digest].name, name)


def check_plugins(engine: Path, record: EngineRecord, library: Path) -> None:
    """Raise HostError unless `library` is the plugin library the engine was built with."""
    _check_plugins(engine, record, library, sha256(library))


def _check_plugins(engine: Path, record: EngineRecord, library: Path, digest: str) -> None:
    if digest != record.plugins.sha256:
        raise HostError(
            f"{engine} was built with another plugin library than {library}.",
            f"the sidecar records {record.plugins.library} with SHA-256 {(record.plugins.sha256 or '')[:12]}.",
            f"give that library, or {BUILD_AGAIN}",
        )


def _compatible(record: EngineRecord, version: str) -> bool:
    built, here = (tuple(int(part) for part in text.split(".")[:2]) for text in (record.flavour_version, version))
    return bool(record.options.get("version_compatible")) and here >= built and here[0] == built[0]
