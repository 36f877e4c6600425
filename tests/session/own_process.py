"""Tests in a process of their own, and the native libraries that pytest's own process must not load.

What raises signals, or loads libraries that were never meant to share a process, may end the process it runs in. The
tests of a file that are marked `own_process` run in one child, whose reports are taken over when it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FOREIGN = ("tensorrt", "tensorrt_rtx", "tensorrt_lean", "openvino", "ray")
REPORTS = "INFSA_TEST_REPORTS"  # file for the child's reports
TAIL_BYTES = 3000


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.pop(REPORTS, None):
        config.pluginmanager.register(_Child(config, Path(path)), "own_process_child")
    else:
        config.pluginmanager.register(_Parent(config), "own_process_parent")


class _Child:
    """Writes each report to the file, one a line."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config, self.path, self.loaded = config, path, list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        self.loaded = _check(self.loaded, 1)


class _Parent:
    def __init__(self, config: pytest.Config) -> None:
        self.config, self.loaded = config, list[str]()
        self.done: dict[Path, dict[str, list[Any]]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not _marked(item):
            return None
        if item.path not in self.done:
            together = [other for other in item.session.items if other.path == item.path and _marked(other)]
            self.done[item.path] = self._run([_name(other) for other in together])
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = self.done[item.path].get(_name(item), [])
        if not reports or reports[-1].when != "teardown":
            reports = [*reports, self._lost(item)]
        for report in reports:
            report.nodeid = item.nodeid
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        self.loaded = _check(self.loaded, 0)

    def _run(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Run the tests in a child; returns their reports by name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "reports"
            path.touch()
            options = ["--numprocesses=0", "-p", "no:cacheprovider", f"--basetemp={folder}/tmp"]
            options += ["--long"] if self.config.getoption("--long") else []
            command = [sys.executable, "-m", "pytest", "-q", *options, *names]
            ended = subprocess.run(
                command,
                cwd=self.config.rootpath,
                env=os.environ | {REPORTS: str(path)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self.last_words = f"status {ended.returncode}\n{ended.stdout.decode(errors='replace')[-TAIL_BYTES:]}"
            reports: dict[str, list[Any]] = {}
            for line in path.read_text().splitlines():
                report = self.config.hook.pytest_report_from_serializable(config=self.config, data=json.loads(line))
                if isinstance(report.longrepr, list):  # of a skip, where pytest wants the tuple that JSON has not
                    report.longrepr = tuple(report.longrepr)
                reports.setdefault(report.nodeid, []).append(report)
        return reports

    def _lost(self, item: pytest.Item) -> pytest.TestReport:
        text = f"the process of {item.path.name} ended before this test did: {self.last_words}"
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")


def _marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("own_process") is not None


def _name(item: pytest.Item) -> str:
    """The node id without the group that xdist adds."""
    return item.nodeid.rsplit("@", 1)[0] if item.get_closest_marker("xdist_group") else item.nodeid


def _check(known: list[str], allowed: int) -> list[str]:
    """Fail the test that loads more than `allowed` of the foreign libraries; returns those loaded."""
    loaded = [name for name in FOREIGN if getattr(sys.modules.get(name), "__file__", None)]
    if len(loaded) > allowed and loaded != known:
        known[:] = loaded
        pytest.fail(f"{', '.join(loaded)} loaded beside pytest's other tests: mark the test own_process", pytrace=False)
    return loaded
