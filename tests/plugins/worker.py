"""What runs in the process with the stand-in driver: each function takes the built files first."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from tests.plugins.harness import Harness, StandIn


@dataclass(frozen=True)
class Case:
    """One node and its inputs: op, fields, inputs and the shapes of the outputs."""

    op: str
    fields: Mapping[str, Any]
    inputs: Sequence[torch.Tensor]
    shapes: Sequence[Sequence[int]]
    largest: Sequence[Sequence[int]] | None = None  # of inputs and outputs, where the node is dynamic


@dataclass
class Outcome:
    """What came of an enqueue."""

    code: int
    outputs: list[torch.Tensor]
    workspace: int
    messages: str
    launches: list[tuple[str, int]] = field(default_factory=list)
    sms: list[int] = field(default_factory=list)  # that the code was made for


@cache
def _opened(built: Any) -> tuple[Harness, StandIn]:
    from tests.plugins.interpret_entry import run

    torch.set_num_threads(1)
    driver = StandIn(built.driver, built.table, run)  # before the library looks for a driver
    harness = Harness(built.harness, built.plugins)
    assert harness.native.harnessContext() == 0
    return harness, driver


def _outcome(harness: Harness, driver: StandIn, code: int, outputs: list[torch.Tensor], workspace: int) -> Outcome:
    messages, sms = harness.messages() + driver.error, sorted(driver.sms)
    outcome = Outcome(code, outputs, workspace, messages, driver.launches, sms)
    driver.forget()
    return outcome


def _configure(plugin: Any, case: Case) -> int:
    outputs = [torch.empty(shape, dtype=case.inputs[0].dtype) for shape in case.shapes]
    return plugin.configure(case.inputs, outputs, case.largest)


def enqueue(built: Any, case: Case, sm: int = 80, multiprocessors: int = 3) -> Outcome:
    """Create, configure, attach to a context, enqueue."""
    harness, driver = _opened(built)
    driver.reset(sm, multiprocessors)
    plugin = harness.create(case.op, case.fields)
    assert plugin, harness.messages()
    workspace = _configure(plugin, case)
    if workspace < 0:
        plugin.close()
        return _outcome(harness, driver, workspace, [], workspace)
    attached = plugin.attach()
    code, outputs = attached.enqueue(case.inputs, case.shapes, workspace)
    attached.close()
    plugin.close()
    outcome = _outcome(harness, driver, code, outputs, workspace)
    assert driver.alive() == 0, "a module or a buffer outlives its plugin"
    driver.reset()
    return outcome


def creators(built: Any) -> dict[str, Any]:
    return _opened(built)[0].creators()


def refuse(built: Any, op: str, fields: Mapping[str, Any], lengths: Mapping[str, int] | None = None) -> str:
    """The message with which a creator refuses fields; empty when it does not."""
    harness, _ = _opened(built)
    plugin = harness.create(op, fields, lengths)
    if plugin:
        plugin.close()
    return harness.messages()


def offered(built: Any, case: Case, cloned: bool = False) -> list[int]:
    """For each input and output, the types on offer, as bits: the plugin's that was told the node's, or a clone's."""
    harness, _ = _opened(built)
    told = harness.create(case.op, case.fields)
    outputs = [torch.empty(shape, dtype=case.inputs[0].dtype) for shape in case.shapes]
    assert told.tell(case.inputs[0].dtype, len(case.inputs), len(outputs)) == 0
    plugin = told.clone() if cloned else told
    result = [plugin.offered(case.inputs, outputs, i) for i in range(len(case.inputs) + len(outputs))]
    for each in {told, plugin}:
        each.close()
    return result


def configured(built: Any, case: Case) -> str:
    """What a plugin says where it is configured for the case."""
    harness, _ = _opened(built)
    plugin = harness.create(case.op, case.fields)
    _configure(plugin, case)
    plugin.close()
    return harness.messages()


def grids(built: Any, case: Case, multiprocessors: int) -> tuple[list[tuple[str, int]], int]:
    """Kernels and blocks of an enqueue on a GPU of so many multiprocessors, and the workspace; nothing is computed."""
    harness, driver = _opened(built)
    driver.reset(80, multiprocessors)
    plugin = harness.create(case.op, case.fields)
    workspace = _configure(plugin, case)
    with _launching(driver, lambda *_: None):
        code, _ = plugin.enqueue(case.inputs, case.shapes, workspace)
        launches = driver.launches
    plugin.close()
    driver.reset()
    assert code == 0, harness.messages()
    return launches, workspace


def misaligned(built: Any, case: Case) -> list[str]:
    """What an enqueue says for each of its addresses that is not aligned, and at last for none; nothing is computed."""
    harness, driver = _opened(built)
    plugin = harness.create(case.op, case.fields)
    outputs = [torch.empty(shape, dtype=case.inputs[0].dtype) for shape in case.shapes]
    found = []
    with _launching(driver, lambda *_: None):
        for position in range(len(case.inputs) + len(outputs) + 2):
            code = plugin.misaligned(case.inputs, outputs, position)
            found.append(f"{code} {harness.messages()}")
    plugin.close()
    return found


def contexts_after_unloading(built: Any, case: Case) -> tuple[int | None, int | None]:
    """The current context before and after a plugin is destroyed whose modules lie in another one."""
    harness, driver = _opened(built)
    current = [ctypes.c_void_p(), ctypes.c_void_p()]
    plugin = harness.create(case.op, case.fields)
    driver.context(1)
    with _launching(driver, lambda *_: None):
        plugin.enqueue(case.inputs, case.shapes, _configure(plugin, case))
    driver.context(2)
    driver.native.cuCtxGetCurrent(ctypes.byref(current[0]))
    plugin.close()
    driver.native.cuCtxGetCurrent(ctypes.byref(current[1]))
    driver.context(0)
    assert driver.alive() == 0
    return current[0].value, current[1].value


def interleave(built: Any, first: Case, second: Case, threads: bool) -> list[list[torch.Tensor]]:
    """Two attached plugins, enqueued in turn or from two threads, twice each."""
    harness, driver = _opened(built)
    parents = [harness.create(case.op, case.fields) for case in (first, second)]
    workspaces = [_configure(plugin, case) for plugin, case in zip(parents, (first, second), strict=True)]
    plugins = [plugin.attach() for plugin in parents]
    results: list[list[torch.Tensor]] = [[], []]
    codes: list[int] = []

    def go(i: int) -> None:
        driver.context(0)
        case = (first, second)[i]
        code, results[i] = plugins[i].enqueue(case.inputs, case.shapes, workspaces[i])
        codes.append(code)

    for _ in range(2):
        runs = [threading.Thread(target=go, args=(i,)) for i in (0, 1)] if threads else []
        for run in runs:
            run.start()
        for i, run in enumerate(runs or (0, 1)):
            run.join() if threads else go(i)
    assert codes == [0] * 4, harness.messages() + driver.error
    for plugin in (*plugins, *parents):
        plugin.close()
    assert driver.alive() == 0
    driver.forget()
    return results


def clones_share(built: Any, case: Case) -> tuple[int, int]:
    """Modules alive after two clones ran, and after a second CUDA context ran too."""
    harness, driver = _opened(built)
    parent = harness.create(case.op, case.fields)
    workspace = _configure(parent, case)
    one, two = parent.attach(), parent.attach()
    counts = []
    for plugin, context in ((one, 0), (two, 0), (two, 1)):
        driver.context(context)
        code, _ = plugin.enqueue(case.inputs, case.shapes, workspace)
        assert code == 0, harness.messages() + driver.error
        counts.append(driver.alive())
        if plugin is two and context == 0:
            assert counts[0] == counts[1]
    one_left = driver.alive()
    for plugin in (one, two, parent):
        plugin.close()
    driver.context(0)
    assert driver.alive() == 0
    driver.forget()
    return counts[1], one_left


def reshape(built: Any, cases: Sequence[Case]) -> list[Outcome]:
    """One plugin, configured for the largest shapes, enqueued with each case's own."""
    harness, driver = _opened(built)
    plugin = harness.create(cases[0].op, cases[0].fields)
    workspace = _configure(plugin, cases[0])
    outcomes = []
    for case in cases:
        code, outputs = plugin.enqueue(case.inputs, case.shapes, workspace)
        outcomes.append(_outcome(harness, driver, code, outputs, workspace))
    plugin.close()
    return outcomes


def revive(built: Any, case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs of a plugin and of the one created from what it serialises, after it is gone."""
    harness, driver = _opened(built)
    plugin = harness.create(case.op, case.fields)
    workspace = _configure(plugin, case)
    _, before = plugin.enqueue(case.inputs, case.shapes, workspace)
    again = plugin.revive()
    plugin.close()
    code, after = again.enqueue(case.inputs, case.shapes, workspace)
    assert code == 0
    again.close()
    driver.forget()
    return before, after


@contextmanager
def _launching(driver: StandIn, instead: Callable[..., None]) -> Iterator[None]:
    """A driver that does `instead` where it would run a kernel."""
    driver.run, run = instead, driver.run
    try:
        yield
    finally:
        driver.run = run
        driver.forget()


def spans_of_keys(built: Any, case: Case) -> list[tuple[str, int, int]]:
    """Kernel, first key and end of each launch of one enqueue that takes part of the keys; nothing is computed."""
    harness, driver = _opened(built)
    seen: list[tuple[str, int, int]] = []

    def record(entry: Mapping[str, Any], blocks: int, values: Mapping[str, Any]) -> None:
        if "end" in values:
            seen.append((entry["kernel"], values["begin"][1], values["end"][1]))

    with _launching(driver, record):
        plugin = harness.create(case.op, case.fields)
        code, _ = plugin.enqueue(case.inputs, case.shapes, _configure(plugin, case))
        assert code == 0, harness.messages() + driver.error
        plugin.close()
    return seen


def revived_outputs(built: Any, case: Case) -> int:
    """How many outputs a plugin made from what another one serialises has."""
    harness, _ = _opened(built)
    plugin = harness.create(case.op, case.fields)
    again = plugin.revive()
    plugin.close()
    count = again.outputs()
    again.close()
    return count


def fail_in_turn(built: Any, case: Case, calls: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """For each driver function, the code and message when each of its calls in an enqueue fails."""
    harness, driver = _opened(built)
    found: dict[str, list[tuple[int, str]]] = {}
    with _launching(driver, lambda *_: None):  # the host code is what is tested
        for call in calls:
            found[call], at = [], 1
            while True:
                plugin = harness.create(case.op, case.fields)
                workspace = _configure(plugin, case)
                driver.fail(call, at)
                code, _ = plugin.enqueue(case.inputs, case.shapes, workspace)
                reached = driver.calls(call) >= at
                driver.fail()
                relaxed = driver.native.standInTakeCaptureMode() != 0
                plugin.close()
                message = harness.messages()
                assert driver.alive() == 0, f"{call} {at}: something leaks"
                assert not relaxed or call == "cuThreadExchangeStreamCaptureMode", f"{call} {at}: stays relaxed"
                if not reached:
                    break
                found[call].append((code, message))
                at += 1
    return found


def without_context(built: Any, case: Case) -> Outcome:
    harness, driver = _opened(built)
    plugin = harness.create(case.op, case.fields)
    workspace = _configure(plugin, case)
    driver.context(-1)
    code, outputs = plugin.enqueue(case.inputs, case.shapes, workspace)
    driver.context(0)
    plugin.close()
    return _outcome(harness, driver, code, outputs, workspace)
