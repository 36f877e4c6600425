"""Child processes that answer, run out of memory, hang, crash and are killed."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pytest

from infsa_deploy.bench import jobs as jobs_module
from infsa_deploy.bench.child import Child, PointEnded
from infsa_deploy.bench.jobs import Jobs
from infsa_deploy.bench.worker import serve
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import HostError
from infsa_deploy.measurements import FAILED, OUT_OF_MEMORY, TIMEOUT, UNSUPPORTED
from infsa_deploy.runtime.protocol import TensorInfo

OPENING = {"program": "reference", "dtype": "fp32", "path": None, "threads": 1, "device": "cpu"}
IMAGE = [3, 16, 16]


@pytest.fixture
def child():
    made = Child(threads=1, limit_s=300)
    yield made
    made.close()


def opening(checkpoint):
    return {**OPENING, "source": {**ModelSource().__dict__, "weights": str(checkpoint("linear"))}}


def test_a_model_is_opened_warmed_up_and_timed(child, checkpoint):
    asked = {"opening": opening(checkpoint), "runtime": "eager", "image": IMAGE}
    assert child.ask("open", batch=2, limit=None, **asked) == "eager"
    warm_up = child.ask("warm up", most_calls=4, slow_call_s=10.0)
    assert 3 <= warm_up["calls"] <= 4
    assert len(warm_up["logits"]) == 5
    turn = child.ask("turn", seconds=0.0)
    assert len(turn["times_ms"]) == 1
    assert turn["times_ms"][0] > 0
    assert turn["peak_bytes"] is None or turn["peak_bytes"] > 1_000_000


def test_an_allocation_that_fails_is_out_of_memory(child, checkpoint):
    images = 4_000_000_000 // (4 * 3 * 16 * 16)
    asked = {"opening": opening(checkpoint), "runtime": "eager", "image": IMAGE}
    with pytest.raises(PointEnded) as caught:
        child.ask("open", batch=images, limit=2_000_000_000, **asked)
    assert caught.value.status == OUT_OF_MEMORY


def test_a_batch_that_the_file_does_not_take(child, artefact):
    what = {**OPENING, "source": ModelSource().__dict__, "path": str(artefact)}
    child.ask("open", opening=what, runtime="onnxruntime", batch=1, image=[3, 24, 24], limit=None)
    with pytest.raises(PointEnded) as caught:
        child.ask("warm up", most_calls=3, slow_call_s=10.0)
    assert caught.value.status == UNSUPPORTED
    assert "24, 24" in caught.value.reason


def test_the_kernels_kill_is_out_of_memory(child):
    child._process.kill()
    with pytest.raises(PointEnded) as caught:
        child.ask("look for energy", device="cpu")
    assert caught.value.status == OUT_OF_MEMORY
    assert "signal 9" in caught.value.reason


def test_a_crash_gives_the_last_line_it_said(child):
    os.write(child._process.stdin.fileno(), b"no request\n")
    with pytest.raises(PointEnded) as caught:
        child.ask("turn", seconds=1)
    assert caught.value.status == FAILED
    assert "JSONDecodeError" in caught.value.reason


def test_what_takes_too_long_is_ended():
    child = Child(threads=1, limit_s=0.01)
    with pytest.raises(PointEnded) as caught:
        child.ask("look for energy", device="cpu")
    assert caught.value.status == TIMEOUT
    assert child._process.returncode is not None


def test_endings_of_jobs_are_told_apart(tmp_path):
    requests = [
        {"do": "describe", "path": str(tmp_path / "missing.onnx")},
        {"do": "turn", "seconds": 1},
        {"do": "trace", "source": {"model": "nobody"}, "program": "reference", "batch": 1},
    ]
    answers = io.StringIO()
    serve(io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), answers)
    endings = [json.loads(line)["ended"] for line in answers.getvalue().splitlines()]
    assert [status for status, _ in endings] == [UNSUPPORTED, FAILED, UNSUPPORTED]
    assert "does not exist" in endings[0][1]


class Counted:
    """Stands in for a model, and counts its calls."""

    runtime = "counted"
    inputs = (TensorInfo("image", ("batch", *IMAGE), "float32"),)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, feeds):
        self.calls += 1
        return {"maps": np.arange(24.0).reshape(2, 3, 4)}


@pytest.mark.parametrize(("runtime", "calls"), [("eager", 0), ("compile", 1)])
def test_compiling_is_no_call(runtime, calls, monkeypatch):
    session, jobs = Counted(), Jobs()
    monkeypatch.setitem(jobs_module.OPENERS, runtime, lambda what: session)
    opening = {**OPENING, "source": ModelSource().__dict__}
    assert jobs.open(opening, runtime, batch=2, image=IMAGE, limit=None) == "counted"
    assert session.calls == calls
    assert jobs.warm_up(most_calls=1, slow_call_s=10.0)["logits"] == list(range(12))


def test_openvino_is_not_measured_as_a_gpu(artefact):
    what = {**OPENING, "source": ModelSource().__dict__, "path": str(artefact), "device": "cuda"}
    with pytest.raises(HostError, match="OpenVINO is not measured on cuda"):
        Jobs().open(what, "openvino", batch=1, image=IMAGE, limit=None)


@pytest.mark.parametrize(
    ("times", "calls"),
    [
        ([5.0, 4.0, 1.0], 1),  # slow
        ([3.0, 2.0, 4.0, 2.0], 2),  # never settles: as long as a slow call
        ([0.9, 0.5, 0.5, 0.5, 0.5], 4),  # settles
        ([0.1, 0.2] * 6, 10),  # neither: the most there may be
    ],
)
def test_warming_up_ends(times, calls, monkeypatch):
    jobs, left = Jobs(), iter(times)
    monkeypatch.setattr(jobs, "_called", lambda: (next(left), {"logits": np.zeros((1, 2))}))
    assert jobs.warm_up(most_calls=10, slow_call_s=4.0)["calls"] == calls


@pytest.mark.parametrize(("call_s", "calls"), [(0.01, 2), (1.0, 1)])
def test_caches_are_refilled_only_for_short_calls(call_s, calls):
    jobs = Jobs()
    jobs._session, jobs._call_s = Counted(), call_s
    assert len(jobs.turn(seconds=0.0)["times_ms"]) == 1
    assert jobs._session.calls == calls
