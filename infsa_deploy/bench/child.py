"""A child process that answers requests, as its parent sees it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from infsa_deploy.bench.memory import resident_bytes
from infsa_deploy.measurements import FAILED, OUT_OF_MEMORY, TIMEOUT

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Long enough to meet at a barrier; OpenMP threads that spin on beside other work take the cores from their own.
WAITING = {"GOMP_SPINCOUNT": "20000"}
ALLOCATION_WORDS = ("bad_alloc", "bad allocation", "MemoryError")


class PointEnded(Exception):  # noqa: N818 - not an error of the benchmark: a result of it
    """A point came to an end without a figure: status as in `measurements`, and the reason."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(f"{status}: {reason}")


class Child:
    """A process running `bench.worker`. Its own stderr is kept for the reason of a crash."""

    def __init__(self, threads: int, limit_s: float) -> None:
        counts = dict.fromkeys(THREAD_VARIABLES, str(threads)) | WAITING
        paths = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, **counts, "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONPATH": paths}
        self._limit_s = limit_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "infsa_deploy.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have the child do something and return its answer.

        Raises:
            PointEnded: it could not, took longer than the limit, or died.
        """
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None
        answer = json.loads(self._line(do))
        if "ended" in answer:
            raise PointEnded(*answer["ended"])
        return answer["result"]

    @property
    def resident_bytes(self) -> int:
        """What the process holds now; 0 where that cannot be told."""
        return resident_bytes(self._process.pid) or 0

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe:
                try:
                    pipe.close()
                except BrokenPipeError:  # a request it never read
                    continue

    def _line(self, do: str) -> bytes:
        assert self._process.stdout
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + self._limit_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise PointEnded(TIMEOUT, f"{do} took longer than {self._limit_s:g} s")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise self._death()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> PointEnded:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        if code == -signal.SIGKILL:
            return PointEnded(OUT_OF_MEMORY, "the process was killed by signal 9: memory ran out")
        if any(word in line for line in lines for word in ALLOCATION_WORDS):
            return PointEnded(OUT_OF_MEMORY, f"an allocation failed: {said}")
        return PointEnded(FAILED, f"the process ended with code {code}: {said}")
