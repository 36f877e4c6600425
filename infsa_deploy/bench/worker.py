"""What a child process of the benchmark runs: requests in as JSON lines, answers out, nothing else on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

from infsa_deploy.bench.memory import die_with_parent
from infsa_deploy.errors import DeployError
from infsa_deploy.measurements import FAILED, OUT_OF_MEMORY, UNSUPPORTED

# How libraries word it when memory runs out; none of them has an exception type of its own for it.
OUT_OF_MEMORY_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "failed to allocate",
    "bad_alloc",
    "bad allocation",
)


def main() -> None:
    """Answer each request of stdin until it ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    serve(sys.stdin, answers)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests `{"do": name, argument: value, ...}` by `{"result": ...}` or `{"ended": [status, reason]}`."""
    from infsa_deploy.bench.jobs import Jobs

    table = Jobs().table()
    for line in requests:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": table[request.pop("do")](**request)}
        except Exception as error:
            answer = {"ended": _ending(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _ending(error: Exception) -> tuple[str, str]:
    text = " ".join(f"{error.what} {error.why}".split()) if isinstance(error, DeployError) else _first_line(error)
    if isinstance(error, MemoryError) or any(word in str(error).lower() for word in OUT_OF_MEMORY_WORDS):
        return OUT_OF_MEMORY, text
    if isinstance(error, DeployError):
        return UNSUPPORTED, text
    if isinstance(error, ModuleNotFoundError):
        return UNSUPPORTED, f"the package {error.name} is not installed"
    return FAILED, text


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
