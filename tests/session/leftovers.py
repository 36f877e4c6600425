"""No test leaves a process behind, nor a file in the repository or in the folder for temporary files.

A run has a folder of its own for temporary files, which has to be empty at the end. pytest's `tmp_path` lies elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

RUN = "INFSA_TEST_RUN"  # in the environment of every process that a run starts
PASSED_OVER = {".git", ".venv", ".triton", "build", "__pycache__"}  # environments and builds are kept
CACHES = {".pytest_cache", ".ruff_cache", ".mypy_cache", ".hypothesis", ".import_linter_cache"}
LIBRARIES = (".ses", "torchinductor_*", "ray")  # files that ONNX Runtime, PyTorch and Ray keep
PATIENCE_S = 5  # for processes that are ending


class Leftovers:
    """Looks before the first test and after the last; a worker of xdist leaves that to the process that started it."""

    def __init__(self, root: Path) -> None:
        self.root, self.files, self.found = root, set(_files(root)), list[str]()
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        self.scratch = Path(tempfile.mkdtemp(prefix="infsa-run-"))
        self.run = uuid.uuid4().hex
        os.environ |= {RUN: self.run, "TMPDIR": str(self.scratch)}
        tempfile.tempdir = str(self.scratch)

    @pytest.hookimpl(trylast=True)  # when workers have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.found += [f"process: {command}" for command in self._processes()]
        self.found += [f"file in the repository: {name}" for name in sorted(set(_files(self.root)) - self.files)]
        kept = {path for pattern in LIBRARIES for path in self.scratch.glob(pattern)}
        self.found += [f"temporary file: {path.name}" for path in sorted({*self.scratch.iterdir()} - kept)]
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self.found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            name, text = "what the tests left behind", "\n".join(self.found)
            terminalreporter.section(name, red=True)
            terminalreporter.write_line(text)
            report = pytest.TestReport(name, ("", None, name), {}, "failed", text, "teardown")
            terminalreporter.stats.setdefault("error", []).append(report)  # counted in the last line

    def _processes(self) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while (found := list(_started_by(self.run))) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and RUN not in os.environ:  # neither a worker, nor pytest run by a test
        config.pluginmanager.register(Leftovers(config.rootpath), "leftovers")


def _files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in PASSED_OVER | CACHES]
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in files)


def _started_by(run: str) -> Iterator[str]:
    """Command lines of the processes, other than this one, that were started in the run."""
    mark = f"{RUN}={run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:
            continue  # it has ended, or is another user's
