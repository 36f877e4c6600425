"""The jobs of a child process: what is done before the rounds, and one contender that is loaded and timed."""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from infsa_deploy.bench import energy, limits, process
from infsa_deploy.bench.process import PointEnded
from infsa_deploy.config import Trust
from infsa_deploy.errors import DeployError, HostError
from infsa_deploy.files import artefact_sha256
from infsa_deploy.records import bench as measurements
from infsa_deploy.runtime import Session, memory
from infsa_deploy.runtime.sessions.artefact import is_engine, open_artefact, read_artefact_metadata
from infsa_deploy.runtime.sessions.protocol import Arrays

if TYPE_CHECKING:
    from infsa_deploy.validation.reference import ReferenceOutputs  # needs PyTorch

PR_SET_PDEATHSIG = 1
SEED = 0
TRUST = Trust(host_code=True)  # an engine was built for this benchmark, or is named by whoever asks for it
MOST_CALLS = 1000
REFILLING_S = 0.25  # what a cache holds, tens of MB, is read in a hundredth of that
SETTLED, SETTLED_WITHIN = 3, 0.05  # so many calls, and how near they are to their median
MOST_IMAGES, PIXELS = 8, 1024 * 1024


def main(descriptor: int) -> None:
    """Answer each request of the connection until it ends."""
    die_with_parent()
    connection = Connection(descriptor)
    worker = Worker(connection.recv())
    while True:
        try:
            job, request = connection.recv()
        except EOFError:
            return
        connection.send(answer(worker, job, request))


def die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone, however it ended (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answer(worker: Worker, job: Callable[[Worker, Any], Any], request: Any) -> Any:
    """Do `job`, and return its reply, or a PointEnded that tells how it failed."""
    try:
        return job(worker, request)
    except ModuleNotFoundError as error:
        return PointEnded(measurements.NOT_INSTALLED, f"the package {error.name} is not installed", error)
    except DeployError as error:
        known, status, text = error, measurements.UNSUPPORTED, " ".join(f"{error.what} {error.why}".split())
    except Exception as error:
        lines = str(error).strip().splitlines()
        known, status, text = None, measurements.FAILED, ": ".join([type(error).__name__, *lines[:1]])
    return PointEnded(measurements.OUT_OF_MEMORY if process.tells_of_memory(text) else status, text, known)


class Worker:
    """Does the jobs of one child, which opens at most one contender."""

    def __init__(self, settings: measurements.Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._feeds: dict[str, Any] = {}
        self._batch, self._call_s = 0, 0.0
        self._known: ReferenceOutputs | None = None

    def trace(self, asked: process.TraceRequest) -> process.Traced:
        """Learn what a program needs, without running it."""
        from infsa_deploy.bench.programs import build
        from infsa_deploy.export.call_cost import trace_cost

        built = build(asked.source, asked.program)
        image = (built.image.channels, built.image.height, built.image.width)
        return process.Traced(trace_cost(built.module, built.image, asked.batch), image, built.source)

    def export(self, asked: process.ExportRequest) -> str:
        """Export a model; reply with the file's hash."""
        from infsa_deploy.export.pipeline import export_reference
        from infsa_deploy.export.sources import load_reference
        from infsa_deploy.runtime.pictures.folder import ZOO, calibration_batches

        reference, path = load_reference(asked.source), Path(asked.path)
        images = _images_for(reference.image.height, reference.image.width) if asked.config.int8 else 0
        batches = list(calibration_batches(ZOO, reference.image, images)) if images else []
        export_reference(reference, path, asked.config, calibration=batches)
        return artefact_sha256(path)

    def count(self, asked: process.FileRequest) -> process.Counted:
        """Count a call of a model file; of an engine, in the ONNX file it was built from, if that is still there."""
        from infsa_deploy.engine.sidecar import read_sidecar
        from infsa_deploy.export.call_cost import count_work

        path = Path(asked.path)
        metadata = read_artefact_metadata(path)
        image = replace(metadata.image, height=asked.height, width=asked.width)
        need = int(metadata.memory.total_bytes(memory.token_count(metadata.memory, image), asked.batch))
        graph = path.with_name(read_sidecar(path).onnx) if is_engine(path) else path
        return process.Counted(need, count_work(graph, image, asked.batch) if graph.is_file() else None)

    def validate(self, asked: process.FileRequest) -> measurements.Validation:
        """Compare a model file with its reference, an image at a time; its outputs are kept for other files of it."""
        from infsa_deploy.validation.against_reference import validate_model
        from infsa_deploy.validation.inputs import Plan
        from infsa_deploy.validation.reference import ReferenceOutputs

        self._known = known = self._known or ReferenceOutputs()
        images, threads = _images_for(asked.height, asked.width), self._settings.threads
        plan = Plan(-(-images // 2), images // 2, batch=1)  # half of them noise
        report = validate_model(Path(asked.path), plan, threads=threads, trust=TRUST, known=known)
        worst = max(report.comparisons, key=lambda comparison: comparison.share_of_bound)
        detail = f"root mean square error {worst.rms:.3g} on {worst.inputs} images, bound {worst.rms_bound:.3g}"
        return measurements.Validation(asked.sha256, report.passed, report.rewrite or detail)

    def measure_ceilings(self, run: str) -> measurements.Ceilings:
        """Measure what the device can do, for the run of that start."""
        return limits.measure_ceilings(run, self._settings)

    def find_energy(self, device: str) -> measurements.EnergySource:
        """Look for an energy counter, and take the idle power."""
        return energy.look_for_energy(device)

    def open(self, asked: process.OpenRequest) -> process.Opened:
        """Load a contender and call it until its latency settles, or for as long as a slow call; one call at least."""
        memory.limit_memory(asked.limit_bytes)
        self._session = session = open_session(asked, self._settings)
        noise = np.random.default_rng(SEED).standard_normal((asked.batch, *asked.image), dtype=np.float32)
        self._feeds, self._batch = {session.inputs[0].name: noise.astype(session.inputs[0].dtype)}, asked.batch
        if asked.contender.runtime == "compile":
            self._called()  # compiles: as a call, it would pass for a very slow one
        most, limit_s, times = self._settings.warm_up_calls, self._settings.slow_call_s, [0.0]
        while len(times) <= most and not settled(times[1:]) and sum(times) <= limit_s:
            seconds, outputs = self._called()
            times.append(seconds)
        self._call_s, peak = times[-1], memory.peak_bytes(self._settings.device)
        logits = tuple(np.ravel(next(iter(outputs.values()))[0]).astype(np.float64).tolist())
        del outputs
        memory.forget_peak(self._settings.device)
        return process.Opened(session.runtime, len(times) - 1, settled(times[1:]), self._call_s, logits, peak)

    def sample(self, seconds: float) -> process.Sampled:
        """Time calls for `seconds`, one at least; a call before them refills the caches where calls are short."""
        if self._call_s < REFILLING_S:
            self._called()
        times = [self._called()[0]]
        while sum(times) < seconds and len(times) < MOST_CALLS:
            times.append(self._called()[0])
        peak = memory.peak_bytes(self._settings.device)
        return process.Sampled(tuple(round(1000 * time, 4) for time in times), peak)

    def measure_energy(self, source: measurements.EnergySource) -> measurements.Energy:
        """Measure the energy of calls of the open contender."""
        return energy.measure(energy.find_counter(self._settings.device), source, self._called, self._batch)

    def _called(self) -> tuple[float, Arrays]:
        assert self._session
        start = time.perf_counter()
        outputs = self._session(self._feeds)
        return time.perf_counter() - start, outputs


def open_session(asked: process.OpenRequest, settings: measurements.Settings) -> Session:
    """Load what a contender runs, in its runtime."""
    runtime, dtype, path = asked.contender.runtime, str(asked.contender.dtype), Path(str(asked.path))
    if runtime == "openvino" and settings.device != "cpu":
        raise HostError(f"OpenVINO is not measured on {settings.device}.", "its contenders run on the CPU.", "")
    if runtime == "openvino":
        from infsa_deploy.runtime.sessions.openvino import OpenVinoSession

        return OpenVinoSession(path, dtype, settings.threads)
    if runtime in ("onnxruntime", "tensorrt"):
        return open_artefact(path, settings.device, settings.threads, trust=TRUST)
    import torch

    from infsa_deploy.bench.programs import build
    from infsa_deploy.runtime.sessions.eager import EagerSession

    torch.set_num_threads(settings.threads)
    built = build(asked.source, asked.contender.program)
    session = EagerSession(built.module, built.image, dtype, settings.device)
    if runtime == "compile":
        session.module = torch.compile(session.module, dynamic=False)  # type: ignore[assignment]
        session.runtime = "torch.compile"
    return session


def settled(times: list[float]) -> bool:
    """Tell whether the last calls lie near their median."""
    last = times[-SETTLED:]
    return len(last) == SETTLED and max(abs(time - median(last)) for time in last) <= SETTLED_WITHIN * median(last)


def _images_for(height: int, width: int) -> int:
    """How many images to calibrate or to compare on: enough to tell, fewer where one takes seconds."""
    return min(MOST_IMAGES, max(1, PIXELS // (height * width)))
