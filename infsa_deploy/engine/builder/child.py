"""Running the compiler in a process of its own: a parser that aborts must not end the caller's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from infsa_deploy.engine.builder.compiler import Outcome, Request, compile_plan
from infsa_deploy.engine.flavor import Flavor, alias_folder
from infsa_deploy.errors import BuildError

BOOTSTRAP = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from infsa_deploy.engine.builder.child import serve
serve(int(sys.argv[2]))
"""
GRACE_S = 5


def run_compiler(request: Request, log: Path, receive: Callable[[str, Any], None]) -> Outcome | None:
    """Run compile_plan(request) in a child process that is gone when this returns or raises.

    Args:
        log: file that takes everything the child writes.
        receive: called with each ("phase" | "log" | "facts", value); an exception it raises ends the build.

    Raises:
        BuildError: the child died; DeployError, OSError: as raised in the child.
    """
    ours, theirs = Pipe()
    with tempfile.TemporaryDirectory(prefix="infsa-deploy-") as folder, log.open("w", encoding="utf-8") as output:
        process = _start(theirs, _environment(request.flavor, Path(folder)), output)
        theirs.close()
        try:
            ours.send(request)
            while True:
                kind, value = ours.recv()
                if kind == "done":
                    return _finished(value)
                if kind == "failed":
                    raise value
                receive(kind, value)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise _death(request.flavor, process.wait(), log) from None
        finally:
            ours.close()
            _stop(process)


def serve(descriptor: int) -> None:
    """The child's side: take one request from the connection `descriptor`, answer on it."""
    connection, lock = Connection(descriptor), threading.Lock()

    def send(kind: str, value: Any) -> None:
        with lock:  # TensorRT reports from threads of its own
            connection.send((kind, value))

    try:
        send("done", compile_plan(connection.recv(), send))
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        send("failed", error)


def _start(theirs: Connection, environment: dict[str, str], output: IO[str]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, so that Ctrl-C reaches the caller alone."""
    descriptor = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[descriptor],
        env=environment,
        start_new_session=True,
    )


def _environment(flavor: Flavor, folder: Path) -> dict[str, str]:
    alias, environment = alias_folder(flavor, folder), dict(os.environ)
    if alias is not None:
        paths = [str(alias), *filter(None, [environment.get("LD_LIBRARY_PATH")])]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    return environment


def _finished(value: Any) -> Outcome | None:
    assert value is None or isinstance(value, Outcome)
    return value


def _death(flavor: Flavor, status: int, log: Path) -> BuildError:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return BuildError(
        f"the process that runs {flavor.title} {how}.",
        f"its last words: {lines[-1]}" if lines else "it left no message.",
        f"see {log}; SIGKILL is most often a lack of memory.",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
