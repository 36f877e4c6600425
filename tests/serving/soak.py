"""Many clients on one Triton server: every answer checked, a new version loaded under load, malformed requests.

python -m tests.serving.soak --seconds 60 --clients 16 --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import infsa_deploy
from infsa_deploy.config import ServingConfig
from infsa_deploy.serving.package import package

ROOT = Path(__file__).parent.parent.parent
SAMPLES = sorted((ROOT / "models" / "infsa_models" / "samples").glob("digit_*.png"))
START_S, MODEL = 300, "digits"
COUNTERS = {"request_success": "requests", "count": "images", "exec_count": "runs"}
CONTROL = ("--model-control-mode=explicit", "--load-model=*")
PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@dataclass(frozen=True)
class Server:
    """A running server's addresses and its log; `warm_up` is what it counted of a model that was just loaded."""

    http: str
    grpc: str
    metrics: str
    log: Path
    warm_up: Counter[str] = field(default_factory=Counter)

    def client(self, protocol: str) -> Any:
        """A client of one thread."""
        return PROTOCOLS[protocol].InferenceServerClient(getattr(self, protocol))

    def counters(self, version: str) -> Counter[str]:
        """What the server counts of a version of the model: requests answered, images in them, runs."""
        text = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10).read().decode()
        pattern = rf'^nv_inference_(\w+){{model="{MODEL}",version="{version}"}} ([\d.]+)$'
        found = dict(re.findall(pattern, text, re.MULTILINE))
        return Counter({ours: int(float(found.get(theirs, 0))) for theirs, ours in COUNTERS.items()})


@contextmanager
def serving(repository: Path, log: Path, options: Sequence[str] = CONTROL) -> Iterator[Server]:
    """Run scripts/serve_triton.sh on free ports until the block ends."""
    http, grpc, metrics = _free_ports(3)
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", ROOT / "scripts" / "serve_triton.sh", repository, *ports, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            server = Server(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}", log)
            _wait_until_ready(server, process)
            yield replace(server, warm_up=server.counters("1"))
            assert process.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def infer(client: Any, protocol: str, model: str, name: str, array: np.ndarray) -> tuple[np.ndarray, str]:
    """The logits, and the version that gave them."""
    kind: ModuleType = PROTOCOLS[protocol]
    types = {"float32": "FP32", "float64": "FP64", "object": "BYTES"}
    tensor = kind.InferInput(name, list(array.shape), types[str(array.dtype)])
    tensor.set_data_from_numpy(array)
    result = client.infer(model, [tensor])
    response = result.get_response()
    version = response["model_version"] if isinstance(response, dict) else response.model_version
    return result.as_numpy("logits"), version


def encoded(path: Path) -> np.ndarray:
    """A file's bytes as the ensemble takes them, [1, 1]."""
    return np.array([[path.read_bytes()]], object)


@dataclass
class Expected:
    """What each version answers, image by image, and how far the sharing of a run may move an answer.

    Attributes:
        logits: [images, classes] by version, each image run alone.
        bound: largest change of a logit from sharing a run with any number of others, twice what was seen of it here,
            and one unit in the last place.
    """

    images: np.ndarray
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)

    def add(self, version: str, path: Path) -> None:
        with infsa_deploy.load(path, threads=1) as model:
            alone = np.concatenate([model.run(image[None])["logits"] for image in self.images])
            repeated = [model.run(np.resize(self.images, (n, *self.images.shape[1:])))["logits"] for n in range(1, 33)]
        moved = max(np.abs(found - np.resize(alone, found.shape)).max() for found in repeated)
        self.logits[version] = alone
        self.bound[version] = 2 * float(moved) + float(np.spacing(np.abs(alone).max()))

    def check(self, indices: np.ndarray, found: np.ndarray, version: str) -> None:
        off = np.abs(found - self.logits[version][indices]).max()
        assert found.shape == (len(indices), 10)
        assert off <= self.bound[version], f"version {version} is off by {off}, more than {self.bound[version]}"


class Clients:
    """Threads that ask until they are told to stop, and what came of it."""

    def __init__(self, server: Server, expected: Expected, count: int) -> None:
        self._server, self._expected, self._stop = server, expected, threading.Event()
        self._lock, self.answered, self.images, self.refused = threading.Lock(), Counter(), 0, 0
        self.latencies_ms: list[float] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(count)]
        self._threads.append(threading.Thread(target=self._ask_nonsense))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request was never answered"

    def _ask(self, seed: int) -> None:
        rng, protocol = np.random.default_rng(seed), ("http", "grpc")[seed % 2]
        client = self._server.client(protocol)
        while not self._stop.is_set():
            indices = rng.integers(0, len(self._expected.images), rng.integers(1, 5))
            started = time.perf_counter()
            try:
                found, version = infer(client, protocol, MODEL, "image", self._expected.images[indices])
                self._expected.check(indices, found, version)
            except Exception as error:
                self.failures.append(f"{protocol}: {error!r}")
                continue
            with self._lock:
                self.latencies_ms.append((time.perf_counter() - started) * 1000)
                self.answered[version] += 1
                self.images += len(indices)

    def _ask_nonsense(self) -> None:
        """Wrong shape, wrong type, unknown input, damaged file, bytes that are no request: each must be refused."""
        requests = (
            ("http", MODEL, "image", np.zeros((1, 1, 63, 64), np.float32)),
            ("grpc", MODEL, "image", np.zeros((1, 1, 64, 64), np.float64)),
            ("http", MODEL, "picture", np.zeros((1, 1, 64, 64), np.float32)),
            ("grpc", MODEL, "image", np.zeros((33, 1, 64, 64), np.float32)),
            ("grpc", f"{MODEL}_image", "file", np.array([[b"no image"]], object)),
        )
        clients = {protocol: self._server.client(protocol) for protocol in PROTOCOLS}
        while not self._stop.wait(0.2):
            for protocol, model, name, array in requests:
                try:
                    infer(clients[protocol], protocol, model, name, array)
                    self.failures.append(f"{model} answered a malformed request with {name} {array.shape}")
                except InferenceServerException:
                    self.refused += 1
            request = urllib.request.Request(f"http://{self._server.http}/v2/models/{MODEL}/infer", b"\x00{nonsense")
            try:
                urllib.request.urlopen(request, timeout=10)
                self.failures.append("bytes that are no request were answered")
            except urllib.error.HTTPError:
                self.refused += 1


def soak(server: Server, repository: Path, models: dict[str, Path], seconds: float, clients: int) -> dict[str, Any]:
    """Ask for so many seconds; in the middle version 2, another model, is packaged and loaded. Returns the figures."""
    with infsa_deploy.load(models["1"], threads=1) as model:
        expected = Expected(np.concatenate([model.preprocess(path) for path in SAMPLES]))
    for version, path in models.items():
        expected.add(version, path)
    before = server.counters("1")
    asking = Clients(server, expected, clients)
    started = time.perf_counter()
    asking.start()
    time.sleep(seconds / 2)
    first = server.counters("1") - before  # a version's counters go when it is unloaded
    package(models["2"], repository, ServingConfig("python", MODEL, threads=1))
    server.client("http").load_model(MODEL)
    time.sleep(max(0.0, started + seconds - time.perf_counter()))
    asking.stop()
    elapsed = time.perf_counter() - started
    second = server.counters("2") - server.warm_up
    latencies = np.percentile(asking.latencies_ms, (50, 95, 99))
    return {
        "seconds": round(elapsed, 1),
        "clients": clients,
        "requests_answered": sum(asking.answered.values()),
        "answered_by_version": dict(sorted(asking.answered.items())),
        "images": asking.images,
        "requests_per_s": round(sum(asking.answered.values()) / elapsed, 1),
        "images_per_s": round(asking.images / elapsed, 1),
        "latency_ms": dict(zip(("p50", "p95", "p99"), (round(float(value), 2) for value in latencies), strict=True)),
        "failures": asking.failures,
        "malformed_refused": asking.refused,
        "counted_by_server": {"1, until the reload": dict(first), "2": dict(second)},
        "requests_a_run": [round(n["requests"] / n["runs"], 2) for n in (first, second)],
    }


def make_repository(folder: Path, model: Path) -> Path:
    """A repository with the model as version 1, and its ensemble."""
    repository = folder / "repository"
    package(model, repository, ServingConfig("python", MODEL, threads=1, ensemble=True))
    return repository


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, f"the server did not start: {server.log.read_text()[-3000:]}"
        try:
            if server.client("http").is_server_ready():
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"the server is not ready after {START_S} s: {server.log.read_text()[-3000:]}")


def _main() -> None:
    from infsa_deploy.config import ExportConfig, ModelSource
    from infsa_deploy.export.pipeline import export_reference
    from infsa_deploy.export.sources import load_reference

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, models = Path(name), {}
        for version, variant in (("1", "linear"), ("2", "pure")):
            models[version] = folder / f"{variant}.onnx"
            export_reference(load_reference(ModelSource(model=f"digits_{variant}")), models[version], ExportConfig())
        repository = make_repository(folder, models["1"])
        with serving(repository, folder / "log") as server:
            text = json.dumps(soak(server, repository, models, asked.seconds, asked.clients), indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main()
