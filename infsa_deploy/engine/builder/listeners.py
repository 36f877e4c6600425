"""What TensorRT calls while it works: a logger that keeps its messages, and a progress monitor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

SEVERITIES = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
REPEATED = "already exists, the output tensors"  # said of each node of a function body used twice


class Messages:
    """TensorRT's log: to this process's stderr, which is the log file, and with `verbose` to the reader too.

    Attributes:
        errors, warnings, lines: messages of these severities; `lines` are those of severity INFO.
    """

    def __init__(self, send: Callable[[str, Any], None], *, verbose: bool) -> None:
        self._send, self._verbose = send, verbose
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.lines: list[str] = []

    def add(self, severity: str, text: str) -> None:
        """Keep and pass on one message; VERBOSE ones only if they are wanted."""
        if severity == "VERBOSE" and not self._verbose:
            return
        kept = {"INTERNAL_ERROR": self.errors, "ERROR": self.errors, "WARNING": self.warnings, "INFO": self.lines}
        if severity in kept:
            kept[severity].append(text)
        if REPEATED in text and not self._verbose:
            return
        print(f"[{severity.lower()}] {text}", file=sys.stderr, flush=True)
        if self._verbose:
            self._send("log", f"[{severity.lower()}] {text}")


def make_logger(trt: Any, messages: Messages) -> Any:
    """An ILogger of the module `trt` that feeds `messages`."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            messages.add(severity.name, text)

    return Logger()


def make_monitor(trt: Any, send: Callable[[str, Any], None]) -> Any:
    """An IProgressMonitor of the module `trt` that sends the phase begun last and how many steps it has."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self._steps[phase] = steps
            send("phase", f"building the engine: {phase.lower()}")

        def step_complete(self, phase: str, step: int) -> bool:
            if self._steps.get(phase, 1) > 1:
                send("phase", f"building the engine: {phase.lower()} ({step + 1} of {self._steps[phase]})")
            return True

        def phase_finish(self, phase: str) -> None:
            self._steps.pop(phase, None)

    return Monitor()
