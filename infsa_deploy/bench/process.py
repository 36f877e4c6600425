"""A child process that does one job after another, as its parent sees it; `worker` is the child's side.

A job takes one frozen request and gives one frozen reply; both are pickled.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any, TypeVar

from infsa_deploy.bench.contenders import Contender, Program
from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.records.bench import FAILED, OUT_OF_MEMORY, TIMEOUT, Settings, TraceCost, Work

Request = TypeVar("Request")
Reply = TypeVar("Reply")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Long enough to meet at a barrier; OpenMP threads that spin beside other work take the cores from their own.
WAITING = {"GOMP_SPINCOUNT": "20000", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
# How libraries word it when memory runs out; none of them has an exception type of its own for it.
MEMORY_WORDS = "allocate memory|not enough memory|out of memory|failed to allocate|bad_alloc|bad allocation|MemoryError"
PROGRAM = "import sys; from infsa_deploy.bench.worker import main; main(int(sys.argv[1]))"


class PointEnded(Exception):  # noqa: N818 - no error of the benchmark, but a result of it
    """A contender ended without all of its figures: status as in `measurements`, the reason, and the error if any."""

    def __init__(self, status: str, reason: str, error: Exception | None = None) -> None:
        super().__init__(status, reason, error)
        self.status, self.reason, self.error = status, reason, error


@dataclass(frozen=True)
class TraceRequest:
    """A PyTorch program whose cost is asked for."""

    source: ModelSource
    program: Program
    batch: int


@dataclass(frozen=True)
class Traced:
    """What a PyTorch program costs, the (channels, height, width) it takes, and what it is built from."""

    cost: TraceCost
    image: tuple[int, int, int]
    source: ModelSource


@dataclass(frozen=True)
class ExportRequest:
    """A model, and where it is exported to."""

    source: ModelSource
    config: ExportConfig
    path: str


@dataclass(frozen=True)
class FileRequest:
    """A model file of that hash, and the size of its image and batch."""

    path: str
    sha256: str
    batch: int
    height: int
    width: int


@dataclass(frozen=True)
class Counted:
    """Bytes that a call needs, by the file's own account; its work, or None where that cannot be counted."""

    need_bytes: int
    work: Work | None


@dataclass(frozen=True)
class OpenRequest:
    """A contender to load and to warm up: a PyTorch program of `source`, or the model file at `path`."""

    contender: Contender
    source: ModelSource
    path: str | None
    batch: int
    image: tuple[int, int, int]
    limit_bytes: int | None = None


@dataclass(frozen=True)
class Opened:
    """A contender that is loaded and warm; `logits` are the last call's, for the first image of the batch."""

    runtime: str
    warm_up_calls: int
    stable: bool
    call_s: float
    logits: tuple[float, ...]
    peak_bytes: int | None


@dataclass(frozen=True)
class Sampled:
    """Times of the calls of a turn, and the peak memory of the turns so far."""

    times_ms: tuple[float, ...]
    peak_bytes: int | None


def tells_of_memory(text: str) -> bool:
    """Tell whether an error's text means that memory ran out."""
    return re.search(MEMORY_WORDS, text, re.IGNORECASE) is not None


class Child:
    """A process that runs `worker`, started by the first job, and by the next one after its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, job: Callable[[Any, Request], Reply], request: Request) -> Reply:
        """Have the child's Worker do `job`, one of its methods, and return its reply.

        Raises:
            PointEnded: it could not, took longer than the limit, or died.
        """
        if self._process is None:
            self._start()
        limit_s = self._settings.limit_s
        try:
            self._connection.send((job, request))
            if not self._connection.poll(limit_s):
                self.close()
                raise PointEnded(TIMEOUT, f"to {job.__name__.replace('_', ' ')} took longer than {limit_s:g} s")
            reply: Reply | PointEnded = self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._death() from None
        if isinstance(reply, PointEnded):
            raise reply
        return reply

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._connection.close()
            self._printed.close()
            self._process = None

    def _start(self) -> None:
        counts = dict.fromkeys(THREAD_VARIABLES, str(self._settings.threads)) | WAITING
        paths = os.pathsep.join(filter(None, sys.path))
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process; tells why it crashed
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={**os.environ, **counts, "PYTHONPATH": paths},
                pass_fds=[theirs.fileno()],
            )
        self._connection.send(self._settings)

    def _death(self) -> PointEnded:
        assert self._process
        code = self._process.wait()
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        self.close()
        said = lines[-1] if lines else "it said nothing"
        if code == -signal.SIGKILL:
            return PointEnded(OUT_OF_MEMORY, "the process was killed by signal 9: memory ran out")
        if any(map(tells_of_memory, lines)):
            return PointEnded(OUT_OF_MEMORY, f"an allocation failed: {said}")
        return PointEnded(FAILED, f"the process ended with code {code}: {said}")
