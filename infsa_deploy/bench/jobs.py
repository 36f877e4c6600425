"""What a child process of the benchmark can be asked to do; arguments and results are plain JSON."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infsa_deploy.bench import energy, memory
from infsa_deploy.bench.roofline import measure_ceilings
from infsa_deploy.bench.sessions import OPENERS, Opening, random_image
from infsa_deploy.bench.statistics import settled
from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.errors import ModelError
from infsa_deploy.measurements import EnergySource, Validation, Work
from infsa_deploy.records import ModelMetadata, decode
from infsa_deploy.runtime import Session
from infsa_deploy.runtime.artefact import is_engine
from infsa_deploy.runtime.protocol import Arrays

if TYPE_CHECKING:
    from infsa_deploy.validate import ReferenceOutputs  # needs PyTorch

MOST_CALLS = 1000
REFILLING_S = 0.25  # what a cache holds, tens of MB, is read in a hundredth of that
MOST_IMAGES = 8
PIXELS = 1024 * 1024
Decoded = dict[str, Any]


class Jobs:
    """The answers of one child, which opens at most one model."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._device = "cpu"
        self._feeds: dict[str, Any] = {}
        self._batch = 0
        self._call_s = 0.0
        self._known: ReferenceOutputs | None = None

    def table(self) -> dict[str, Callable[..., Any]]:
        """Every request by name."""
        return {
            "describe": describe,
            "trace": trace,
            "export": export,
            "count": count,
            "need": need,
            "validate": self.validate,
            "ceilings": ceilings,
            "look for energy": look_for_energy,
            "open": self.open,
            "warm up": self.warm_up,
            "turn": self.turn,
            "measure energy": self.measure_energy,
        }

    def open(self, opening: Decoded, runtime: str, batch: int, image: list[int], limit: int | None) -> str:
        """Load a model, with at most `limit` bytes; returns the name of what runs it."""
        memory.limit_memory(limit)
        what = Opening(**{**opening, "source": decode(ModelSource, opening["source"])})
        self._device = what.device
        self._session = OPENERS[runtime](what)
        info = self._session.inputs[0]
        self._feeds, self._batch = {info.name: random_image(info, batch, *image)}, batch
        if runtime == "compile":
            self._called()  # compiles: as a call, it would pass for a very slow one
        return self._session.runtime

    def warm_up(self, most_calls: int, slow_call_s: float) -> Decoded:
        """Call until latency settles, or for as long as a slow call takes; one call at least.

        `logits` are the last call's, for the first image of the batch, whatever their shape.
        """
        times: list[float] = []
        outputs: Arrays = {}
        while len(times) < most_calls and not settled(times):
            seconds, outputs = self._called()
            times.append(seconds)
            if sum(times) > slow_call_s:
                break
        self._call_s = times[-1]
        logits = np.ravel(next(iter(outputs.values()))[0]).astype(np.float64).tolist()
        del outputs
        memory.forget_peak(self._device)
        return {"calls": len(times), "stable": settled(times), "call_s": self._call_s, "logits": logits}

    def turn(self, seconds: float) -> Decoded:
        """Times in ms of calls for `seconds`, one at least; peak memory so far.

        A call before them refills the caches, except where calls are so long that filling them is lost in each.
        """
        if self._call_s < REFILLING_S:
            self._timed()
        times = [self._timed()]
        while sum(times) < seconds and len(times) < MOST_CALLS:
            times.append(self._timed())
        return {"times_ms": [1000 * seconds for seconds in times], "peak_bytes": memory.peak_bytes(self._device)}

    def validate(self, path: str, sha256: str, height: int, width: int, threads: int) -> Decoded:
        """Compare a model file with its reference, an image at a time: passed or not, and by how much.

        Half of the images are noise, except where one picture is all there is time for. What the reference gives is
        kept for other files of its model.
        """
        from infsa_deploy.validate import ReferenceOutputs, validate_model
        from infsa_deploy.validation_inputs import Plan

        self._known = known = self._known or ReferenceOutputs()
        images = images_for(height, width)
        plan = Plan(-(-images // 2), images // 2, batch=1, again=MOST_IMAGES)
        report = validate_model(Path(path), plan, threads=threads, known=known)
        worst = max(report.comparisons, key=lambda comparison: comparison.share_of_bound)
        detail = f"largest error {worst.max_abs:.3g} on {worst.inputs} images, bound {worst.bound:.3g}"
        return asdict(Validation(sha256, report.passed, detail))

    def measure_energy(self, source: Decoded, device: str) -> Decoded:
        """Energy of calls of the open model."""
        found = decode(EnergySource, source)
        return asdict(energy.measure(energy.find_counter(device), found, self._timed, self._batch))

    def _timed(self) -> float:
        return self._called()[0]

    def _called(self) -> tuple[float, Arrays]:
        assert self._session
        start = time.perf_counter()
        outputs = self._session(self._feeds)
        return time.perf_counter() - start, outputs


def images_for(height: int, width: int) -> int:
    """How many images to calibrate or to compare on: enough to tell, fewer where one takes seconds."""
    return min(MOST_IMAGES, max(1, PIXELS // (height * width)))


def describe(path: str) -> Decoded:
    """What a model file or engine says of itself, and the hash of it and its external data."""
    return {"metadata": asdict(_metadata(Path(path))), "sha256": file_hash(Path(path))}


def trace(source: Decoded, program: Any, batch: int) -> Decoded:
    """What a PyTorch program needs, without running it, and what it is built from."""
    from infsa_deploy.bench.programs import build
    from infsa_deploy.bench.trace_cost import trace_cost

    built = build(decode(ModelSource, source), program)
    image = [built.image.channels, built.image.height, built.image.width]
    return {**asdict(trace_cost(built.module, built.image, batch)), "image": image, "source": asdict(built.source)}


def export(source: Decoded, config: Decoded, path: str, exported: str | None) -> str:
    """Export a model to `path`; returns the file's hash.

    `exported` is a file of the same but for int8, to start from, if there is one.
    """
    from infsa_deploy.export.pipeline import export_quantized, export_reference
    from infsa_deploy.export.sources import load_reference
    from infsa_deploy.runtime.calibration import ZOO, calibration_batches

    reference, settings = load_reference(decode(ModelSource, source)), ExportConfig(**config)
    batches: list[Any] = []
    if settings.int8:
        image = reference.image
        batches = calibration_batches(ZOO, image, images_for(image.height, image.width))
    if settings.int8 and exported:
        export_quantized(Path(exported), reference, Path(path), settings.int8, batches)
    else:
        export_reference(reference, Path(path), settings, calibration=batches)
    return file_hash(Path(path))


def count(path: str, batch: int, height: int, width: int) -> Decoded | None:
    """Operations and bytes of one call of a model file; of an engine, those of the ONNX file it was built from.

    None for one that works in tiles, whose loops have no count, and for an engine whose ONNX file is gone.
    """
    from infsa_deploy.export.free_axes import patch_grid
    from infsa_deploy.export.graph_cost import count_bytes, count_flops_by_type
    from infsa_deploy.export.store import load_model

    onnx_file = _onnx_file(Path(path))
    if not onnx_file.is_file():
        return None
    model, metadata = load_model(onnx_file)
    if metadata.tile_tokens:
        return None
    sizes = {"batch": batch, **patch_grid(replace(metadata.image, height=height, width=width))}
    moved = count_bytes(model, sizes)
    parts = (moved[part] for part in ("weights", "inputs", "outputs", "activations"))
    return asdict(Work(dict(count_flops_by_type(model, sizes)), *parts))


def need(path: str, batch: int, height: int, width: int) -> int:
    """Bytes that a model file says one call needs; it knows of its tiles."""
    from infsa_deploy.runtime.memory import token_count

    metadata = _metadata(Path(path))
    image = replace(metadata.image, height=height, width=width)
    return int(metadata.memory.total_bytes(token_count(metadata.memory, image), batch))


def ceilings(run: str, threads: int, device: str, quick: bool) -> Decoded:
    """What the device can do."""
    return asdict(measure_ceilings(run, threads, device, quick=quick))


def look_for_energy(device: str) -> Decoded:
    """The energy counter of this machine, if it has one, and idle power."""
    return asdict(energy.look_for_energy(device))


def file_hash(path: Path) -> str:
    """SHA-256 of a file and of the `.data` beside it, where weights are kept apart."""
    digest = hashlib.sha256()
    for part in (path, path.with_name(f"{path.name}.data")):
        if part.exists():
            with part.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _metadata(path: Path) -> ModelMetadata:
    from infsa_deploy.engine.sidecar import read_sidecar
    from infsa_deploy.export.store import load_model

    if not is_engine(path):
        return load_model(path)[1]
    metadata = read_sidecar(path).metadata
    if metadata is None:
        raise ModelError(f"{path} has no reference.", "its ONNX file is not one of ours.", "export the model again.")
    return metadata


def _onnx_file(path: Path) -> Path:
    from infsa_deploy.engine.sidecar import read_sidecar

    return path.with_name(read_sidecar(path).onnx) if is_engine(path) else path
