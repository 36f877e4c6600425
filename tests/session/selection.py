"""Which tests a run takes, in which order, and what it says of those that it leaves out."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import pytest

COUNT, LEFT = "infsa_long_tests", pytest.StashKey[int]()
# What takes longest starts first, so that no worker waits at the end for the other. Times of a run on two cores.
FIRST = ("plugins/test_library.py", "plugins/embed", "plugins", "engine", "scripts", "serving", "test_packaging.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, and no other")


@pytest.hookimpl(trylast=True)  # after a plugin that shuffles
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--long")
    left = [item for item in items if bool(item.get_closest_marker("long")) is not wanted]
    if not wanted:
        _note(config, len(left))
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: _rank(item.path, config.rootpath))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    _note(node.config, getattr(node, "workeroutput", {}).get(COUNT, 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"LEFT OUT [{count}] tests marked long: bash scripts/test.sh --long runs them")


def _note(config: pytest.Config, count: int) -> None:
    """Keep the count for the summary; a worker sends it to the process that writes one."""
    config.stash[LEFT] = max(count, config.stash.get(LEFT, 0))
    if hasattr(config, "workeroutput"):
        config.workeroutput[COUNT] = count


def _rank(path: Path, root: Path) -> int:
    place = path.relative_to(root / "tests").as_posix() if path.is_relative_to(root / "tests") else ""
    return next((rank for rank, start in enumerate(FIRST) if place.startswith(start)), len(FIRST))


@cache
def _why_no_gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs a GPU: this machine has no NVIDIA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    return f"needs a GPU: cuInit fails with CUDA error {status}" if status else ""
