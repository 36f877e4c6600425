"""Child processes that answer, run out of memory, hang, crash and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infsa_deploy.bench.contenders import CONTENDERS
from infsa_deploy.bench.process import Child, OpenRequest, PointEnded
from infsa_deploy.bench.worker import Worker
from infsa_deploy.config import ModelSource
from infsa_deploy.records.bench import FAILED, OUT_OF_MEMORY, TIMEOUT, Settings


def memory_is_full(worker, request):
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr)
    os.abort()


def crash(worker, request):
    print("on the way out")
    os._exit(3)


def wait(worker, seconds):
    time.sleep(seconds)


def tell(worker, request):
    return os.getpid(), os.environ["OMP_NUM_THREADS"], worker._settings, request


@pytest.fixture(scope="module")
def child():
    made = Child(Settings(threads=3, limit_s=300))
    yield made
    made.close()


def test_a_job_gets_its_request_and_the_settings_and_the_next_one_the_same_process(child):
    process, threads, settings, request = child.ask(tell, ("a", 1))
    assert (threads, settings, request) == ("3", Settings(threads=3, limit_s=300), ("a", 1))
    assert child.ask(tell, None)[0] == process != os.getpid()


def test_a_crash_gives_the_last_line_it_said_and_the_next_job_a_new_process(child):
    before = child.ask(tell, None)[0]
    with pytest.raises(PointEnded) as caught:
        child.ask(crash, None)
    assert (caught.value.status, caught.value.reason) == (FAILED, "the process ended with code 3: on the way out")
    assert child.ask(tell, None)[0] != before


def test_the_kernels_kill_is_out_of_memory(child):
    os.kill(child.ask(tell, None)[0], signal.SIGKILL)
    with pytest.raises(PointEnded) as caught:
        child.ask(tell, None)
    assert caught.value.status == OUT_OF_MEMORY
    assert "signal 9" in caught.value.reason


def test_a_failed_allocation_that_ends_the_process_is_out_of_memory(child):
    with pytest.raises(PointEnded) as caught:
        child.ask(memory_is_full, None)
    assert caught.value.status == OUT_OF_MEMORY


def test_what_takes_too_long_is_ended(monkeypatch):
    child = Child(Settings(threads=1, limit_s=0.01))
    with pytest.raises(PointEnded) as caught:
        child.ask(wait, 60)
    assert (caught.value.status, caught.value.reason) == (TIMEOUT, "to wait took longer than 0.01 s")


def test_an_allocation_that_fails_is_out_of_memory(child, checkpoint):
    images = 4_000_000_000 // (4 * 3 * 16 * 16)
    source = ModelSource(weights=str(checkpoint("linear")))
    with pytest.raises(PointEnded) as caught:
        child.ask(Worker.open, OpenRequest(CONTENDERS[0], source, None, images, (3, 16, 16), limit_bytes=2_000_000_000))
    assert caught.value.status == OUT_OF_MEMORY
    child.close()


def test_a_child_dies_with_its_parent_whatever_it_is_doing():
    script = "\n".join(
        [
            "from infsa_deploy.bench.process import Child",
            "from infsa_deploy.records.bench import Settings",
            "from tests.bench.test_process import tell, wait",
            "child = Child(Settings(1))",
            "print(child.ask(tell, None)[0], flush=True)",
            "child.ask(wait, 600)",
        ]
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=paths, text=True)
    orphan = Path("/proc") / parent.stdout.readline().strip() / "cmdline"
    assert b"infsa_deploy.bench.worker" in orphan.read_bytes()
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60
    while orphan.exists() and orphan.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not orphan.exists() or not orphan.read_bytes()
