"""The jobs of a child, done in this process."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from infsa_deploy.bench import worker as worker_module
from infsa_deploy.bench.contenders import CONTENDERS
from infsa_deploy.bench.process import FileRequest, OpenRequest, PointEnded, TraceRequest
from infsa_deploy.bench.worker import Worker, answer, settled
from infsa_deploy.config import ModelSource
from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.records.bench import FAILED, NOT_INSTALLED, OUT_OF_MEMORY, UNSUPPORTED, Settings
from infsa_deploy.records.codec import to_json
from infsa_deploy.runtime.sessions.protocol import TensorInfo
from tests.engine_record import RECORD

BY_NAME = {contender.name: contender for contender in CONTENDERS}
SETTINGS = Settings(threads=1, warm_up_calls=10, slow_call_s=4.0)


def request(name: str, path: str | None = None, source: ModelSource | None = None) -> OpenRequest:
    return OpenRequest(BY_NAME[name], source or ModelSource(), path, 2, (3, 16, 16))


class Counted:
    """Stands in for a model, and counts its calls."""

    runtime = "counted"
    inputs = (TensorInfo("image", ("batch", 3, 16, 16), "float32"),)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, feeds):
        self.calls += 1
        assert feeds["image"].shape == (2, 3, 16, 16)
        return {"maps": np.arange(24.0).reshape(2, 3, 4)}


@pytest.fixture
def session(monkeypatch):
    made = Counted()
    monkeypatch.setattr(worker_module, "open_session", lambda asked, settings: made)
    return made


@pytest.mark.parametrize(("name", "compiling"), [("eager", 0), ("compile", 1)])
def test_compiling_is_no_call(name, compiling, session):
    opened = Worker(replace(SETTINGS, warm_up_calls=1)).open(request(name))
    assert (opened.runtime, opened.warm_up_calls, session.calls) == ("counted", 1, 1 + compiling)
    assert opened.logits == tuple(range(12))  # of the first image, whatever their shape


@pytest.mark.parametrize(
    ("times", "calls", "stable"),
    [
        ([5.0, 4.0, 1.0], 1, False),  # slow
        ([3.0, 2.0, 4.0, 2.0], 2, False),  # never settles: as long as a slow call
        ([0.9, 0.5, 0.5, 0.5, 0.5], 4, True),
        ([0.1, 0.2] * 6, 10, False),  # neither: the most there may be
    ],
)
def test_warming_up_ends(times, calls, stable, session, monkeypatch):
    worker, left = Worker(SETTINGS), iter(times)
    monkeypatch.setattr(worker, "_called", lambda: (next(left), {"logits": np.zeros((1, 2))}))
    opened = worker.open(request("eager"))
    assert (opened.warm_up_calls, opened.stable, opened.call_s) == (calls, stable, times[calls - 1])


@pytest.mark.parametrize(("call_s", "calls"), [(0.01, 2), (1.0, 1)])
def test_caches_are_refilled_only_for_short_calls(call_s, calls, session):
    worker = Worker(SETTINGS)
    worker.open(request("eager"))
    worker._call_s, session.calls = call_s, 0
    sampled = worker.sample(0.0)
    assert (len(sampled.times_ms), session.calls) == (1, calls)
    assert sampled.times_ms[0] >= 0


def test_a_turn_is_as_long_as_it_is_asked_to_be(session, monkeypatch):
    worker = Worker(SETTINGS)
    monkeypatch.setattr(worker, "_called", lambda: (0.1, {}))
    assert worker.sample(0.55).times_ms == (100.0,) * 6


def test_settled():
    assert not settled([1.0, 1.0])
    assert not settled([9.0, 1.0, 1.2])
    assert settled([9.0, 1.0, 1.02, 1.04])


def test_real_contenders_agree(checkpoint, artefact):
    source = ModelSource(weights=str(checkpoint("linear")))
    eager, ours = (
        Worker(SETTINGS).open(request(name, path, source)) for name, path in (("eager", None), ("ours-fp32", artefact))
    )
    assert (eager.runtime, ours.runtime) == ("eager", "onnxruntime")
    assert np.allclose(eager.logits, ours.logits, atol=1e-5)
    traced = Worker(SETTINGS).trace(TraceRequest(source, "reference", 2))
    assert traced.image == (3, 16, 16)


def test_openvino_is_not_measured_as_a_gpu(artefact):
    with pytest.raises(HostError, match="OpenVINO is not measured on cuda"):
        Worker(replace(SETTINGS, device="cuda")).open(request("openvino-fp32", str(artefact)))


def test_an_engine_is_counted_in_the_onnx_file_beside_it(artefact, monkeypatch, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(artefact.read_bytes())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    engine = path.with_name("m.engine")
    engine.touch()
    sidecar_path(engine).write_text(to_json(replace(RECORD, onnx=path.name, engine_sha256="0" * 64, engine_bytes=1)))
    worker = Worker(SETTINGS)

    def work(file):
        return worker.count(FileRequest(str(file), "", 1, 16, 24)).work

    assert work(path).flops > 0
    assert work(engine) == work(path)
    path.unlink()
    assert work(engine) is None


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ModelError("m is no model.", "it is a cat.", "get a dog."), UNSUPPORTED, "m is no model. it is a cat."),
        (ModelError("m cannot be loaded.", "std::bad_alloc", ""), OUT_OF_MEMORY, "m cannot be loaded. std::bad_alloc"),
        (ModuleNotFoundError("No", name="openvino"), NOT_INSTALLED, "the package openvino is not installed"),
        (MemoryError(), OUT_OF_MEMORY, "MemoryError"),
        (RuntimeError("[enforce fail] can't allocate memory: 4\nmore"), OUT_OF_MEMORY, None),
        (ValueError("first\nsecond"), FAILED, "ValueError: first"),
    ],
)
def test_endings_of_jobs_are_told_apart(error, status, reason):
    def broken(worker, request):
        raise error

    ended = pickle.loads(pickle.dumps(answer(Worker(SETTINGS), broken, None)))
    assert isinstance(ended, PointEnded)
    assert ended.status == status
    assert reason is None or ended.reason == reason
    kept = isinstance(error, ModelError | ModuleNotFoundError)
    assert (type(ended.error), str(ended.error)) == ((type(error), str(error)) if kept else (type(None), "None"))


def test_a_reply_is_passed_on_and_an_unknown_model_is_a_usage_error():
    assert answer(Worker(SETTINGS), lambda worker, request: request + 1, 1) == 2
    ended = answer(Worker(SETTINGS), Worker.trace, TraceRequest(ModelSource(model="nobody"), "reference", 1))
    assert isinstance(ended.error, UsageError)
