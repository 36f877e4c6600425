"""The library as TensorRT sees it: creators, fields, formats, shapes, contexts, and a driver that fails."""

from __future__ import annotations

import contextlib
import ctypes
import json
import subprocess
import sys

import pytest
import torch

from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, VERSION
from tests.plugins import cases
from tests.plugins import worker as w
from tests.plugins.build import ROOT
from tests.plugins.harness import FLOAT32, INT32

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
SMALL = {
    "NeumannAttention": lambda dtype=FP16: cases.neumann(dtype, 1, 40, 2, 16, hops=3),
    "EnergyPool": lambda dtype=FP16: cases.energy(dtype, 2, 40, 2, 16, 24),
    "CentralityPool": lambda dtype=FP16: cases.centrality(dtype, 2, 40, 2, 24),
}
each_op = pytest.mark.parametrize("op", SMALL)


def test_creators_match_the_contracts(worker) -> None:
    """Names, version, namespace, and each attribute's name and kind, for every op of the list and no other.

    An op with an optional output has one field more, by which a node tells how many it has.
    """
    expected = {
        op.contract.name: (
            str(VERSION),
            DOMAIN,
            {spec.name: INT32 if spec.kind == "int" else FLOAT32 for spec in op.contract.attributes}
            | ({"plugin_outputs": INT32} if any(spec.optional for spec in op.contract.outputs) else {}),
        )
        for op in OPS
    }
    assert worker(w.creators) == expected


def _valid(op) -> dict[str, float]:
    return {spec.name: 1 if spec.kind == "int" else 0.5 for spec in op.contract.attributes}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.contract.name)
def test_fields_are_checked_as_the_contract_says(worker, op) -> None:
    """Both ends of each range are taken, what lies beyond is refused by name, and so is a wrong kind, count or name."""
    name, valid = op.contract.name, _valid(op)
    assert worker(w.refuse, name, valid) == ""
    for spec in op.contract.attributes:
        step = 1 if spec.kind == "int" else 0.001
        kind = int if spec.kind == "int" else float
        low = spec.minimum + step if spec.above else spec.minimum
        beyond = [low - step, spec.maximum + step] + [float("nan")] * (spec.kind == "float")
        for value in (low, spec.maximum):
            assert worker(w.refuse, name, valid | {spec.name: kind(value)}) == ""
        for value in beyond:
            message = worker(w.refuse, name, valid | {spec.name: kind(value)})
            assert f"{name}: field {spec.name} = " in message
            assert "out of range" in message
        other = float if spec.kind == "int" else int
        assert f"field {spec.name} must be a" in worker(w.refuse, name, valid | {spec.name: other(1)})
        assert f"field {spec.name} must be one" in worker(w.refuse, name, valid, lengths={spec.name: 2})
        rest = {key: value for key, value in valid.items() if key != spec.name}
        missing = worker(w.refuse, name, rest)
        assert f"field {spec.name} is missing" in missing if spec.default is None else missing == ""
    assert "unknown field other" in worker(w.refuse, name, valid | {"other": 1})
    assert "CentralityPool: field plugin_outputs = 4 is out of range [2, 3]" in worker(
        w.refuse, "CentralityPool", {"eps": 0.0, "plugin_outputs": 4}
    )


@each_op
@pytest.mark.parametrize(("dtype", "bit"), [(FP32, 1), (FP16, 2), (BF16, 4)], ids=str)
def test_offers_the_type_of_the_node_alone(worker, op: str, dtype: torch.dtype, bit: int) -> None:
    offered = worker(w.offered, SMALL[op](dtype))
    assert offered == [bit] * len(offered)


@each_op
@pytest.mark.parametrize("threads", [False, True], ids=["in turn", "two threads"])
def test_two_instances(worker, op: str, threads: bool) -> None:
    """Different fields, shapes and types, interleaved: each gives what it gives alone."""
    first = SMALL[op]()
    second = SMALL["EnergyPool" if op == "NeumannAttention" else "NeumannAttention"](FP32)
    results = worker(w.interleave, first, second, threads)
    for case, got in zip((first, second), results, strict=True):
        alone = worker(w.enqueue, case).outputs
        assert all(a.equal(b) for a, b in zip(alone, got, strict=True))


@each_op
def test_contexts_share_modules(worker, op: str) -> None:
    """Two execution contexts load each kernel once; another CUDA context loads its own; all are unloaded at the end."""
    kernels = len({name for name, _ in worker(w.enqueue, SMALL[op]()).launches})
    assert worker(w.clones_share, SMALL[op]()) == (kernels, 2 * kernels)


def _dynamic(op: str, dtype: torch.dtype, B: int, N: int) -> w.Case:
    """A case whose node was configured for batch 3 and 130 tokens: two blocks of queries and several tiles."""
    if op == "NeumannAttention":
        made, most = (cases.neumann(dtype, b, n, 2, 40, hops=2) for b, n in ((B, N), (3, 130)))
    elif op == "EnergyPool":
        made, most = (cases.energy(dtype, b, n, 2, 16, 264) for b, n in ((B, N), (3, 130)))
    else:
        made, most = (cases.centrality(dtype, b, n, 2, 264) for b, n in ((B, N), (3, 130)))
    largest = [tuple(tensor.shape) for tensor in most.inputs] + list(most.shapes)
    return w.Case(made.op, made.fields, made.inputs, made.shapes, largest)


@each_op
@pytest.mark.parametrize("dtype", [FP32, FP16], ids=str)
def test_shapes_change_between_enqueues(worker, op: str, dtype: torch.dtype) -> None:
    """configurePlugin sees -1; the workspace for the largest shapes serves all; run-time sizes are the tensors' own."""
    runs = [_dynamic(op, dtype, B, N) for B, N in ((1, 17), (3, 130), (2, 1), (1, 129))]
    for case, outcome in zip(runs, worker(w.reshape, runs), strict=True):
        assert outcome.code == 0, outcome.messages
        cases.check(case, outcome.outputs)


@each_op
def test_workspace_of_the_largest_shapes_bounds_all_others(worker, op: str) -> None:
    """On a GPU with more multiprocessors than blocks are ever made for; the canary behind the workspace lives."""
    for B, N in ((3, 130), (1, 130), (2, 17), (1, 1)):
        outcome = worker(w.enqueue, _dynamic(op, FP16, B, N), multiprocessors=1000)
        assert outcome.code == 0, outcome.messages


@each_op
def test_serialised_fields_revive_the_plugin(worker, op: str) -> None:
    """With values that no default could have."""
    case = SMALL[op]()
    odd = {"heads": 2, "rho": 0.37, "hops": 2, "eps": 0.25, "rows": 7}
    shapes = [(1, 7, 32)] if op == "NeumannAttention" else case.shapes
    case = w.Case(op, {name: odd[name] for name in case.fields}, case.inputs, shapes)
    before, after = worker(w.revive, case)
    assert all(a.equal(b) for a, b in zip(before, after, strict=True))
    cases.check(case, after)


def test_a_revived_plugin_has_as_many_outputs_as_before(worker) -> None:
    case = SMALL["CentralityPool"]()
    less = w.Case(case.op, case.fields | {"plugin_outputs": 2}, case.inputs, case.shapes[:2])
    assert [worker(w.revived_outputs, each) for each in (case, less)] == [3, 2]


DRIVER_CALLS = {
    "cuCtxGetCurrent": 1,
    "cuCtxGetDevice": 1,
    "cuDeviceGetAttribute": 4,
    "cuThreadExchangeStreamCaptureMode": None,  # once a kernel to relax, where failing matters, and once to restore
    "cuModuleLoadData": None,
    "cuModuleGetFunction": None,
    "cuLaunchKernel": None,
}


@each_op
def test_driver_that_fails_at_each_call_in_turn(worker, op: str) -> None:
    """An error code and a message that names the call; nothing crashes, leaks or stays in a changed mode."""
    case = SMALL[op]()
    launches = worker(w.enqueue, case).launches
    kernels = len({name for name, _ in launches})
    counts = DRIVER_CALLS | {
        "cuModuleLoadData": kernels,
        "cuModuleGetFunction": kernels,
        "cuLaunchKernel": len(launches),
    }
    found = worker(w.fail_in_turn, case, list(DRIVER_CALLS))
    for call, outcomes in found.items():
        assert len(outcomes) == (counts[call] or 2 * kernels), call
        restoring = outcomes[1::2] if call == "cuThreadExchangeStreamCaptureMode" else []
        for outcome in outcomes:
            code, message = outcome
            if any(outcome is other for other in restoring):
                continue
            assert code != 0, (call, message)
            assert f"{call} failed with CUDA error 999 (told to fail)" in message


def test_large_shared_memory_is_asked_for(worker) -> None:
    """A block beyond 48 KiB needs an attribute set first, and its failure is an error too."""
    case = cases.centrality(FP16, 1, 20, 1, 1000)
    outcomes = worker(w.fail_in_turn, case, ["cuFuncSetAttribute"])["cuFuncSetAttribute"]
    assert len(outcomes) == 1
    assert outcomes[0][0] != 0
    assert "cuFuncSetAttribute failed" in outcomes[0][1]


def test_gpu_without_code(worker) -> None:
    outcome = worker(w.enqueue, SMALL["EnergyPool"](), sm=75)
    assert outcome.code != 0
    assert "SM 75. The library holds machine code for SM 80, PTX for SM 86 and newer." in outcome.messages


@each_op
@pytest.mark.parametrize("sm", [86, 89, 90, 120])
def test_later_gpus(worker, op: str, sm: int) -> None:
    """The same major version runs SM 80's machine code, others the PTX, whose tiles are its own."""
    case = SMALL[op]()
    outcome = worker(w.enqueue, case, sm=sm)
    assert outcome.code == 0, outcome.messages
    assert outcome.sms == [80 if sm < 90 else 86]
    cases.check(case, outcome.outputs)


@pytest.mark.parametrize("sm", [86, 89])
def test_machine_code_that_needs_more_shared_memory_than_the_gpu_has(worker, sm: int) -> None:
    """SM 80's widest tile takes 100 KiB; these GPUs, of its major version, have 99, and the PTX takes less."""
    case = cases.centrality(FP16, 1, 20, 1, 1000)
    outcome = worker(w.enqueue, case, sm=sm)
    assert outcome.code == 0, outcome.messages
    assert outcome.sms == [80, 86]
    cases.check(case, outcome.outputs)


def test_thread_without_a_context(worker) -> None:
    outcome = worker(w.without_context, SMALL["EnergyPool"]())
    assert outcome.code != 0
    assert "no CUDA context" in outcome.messages


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (lambda: cases.neumann(FP16, 1, 5, 2, 20), "a multiple of 8 up to 128"),
        (lambda: cases.neumann(FP16, 1, 5, 1, 136), "a multiple of 8 up to 128"),
        (lambda: cases.neumann(FP16, 1, 0, 1, 16), "an axis of 0"),
        (lambda: cases.energy(FP16, 1, 5, 1, 16, 20), "the width of x, 20, must be a multiple of 8"),
        (lambda: cases.energy(FP16, 1, 5, 3, 12, 24), "3 heads times a multiple of 8"),
        (lambda: cases.centrality(FP16, 1, 5, 1, 20), "the width of x, 20, must be a multiple of 8"),
    ],
)
def test_shapes_that_no_kernel_serves(worker, case, message: str) -> None:
    """Refused when the engine is built, in words."""
    outcome = worker(w.enqueue, case())
    assert outcome.code < 0
    assert message in outcome.messages


def test_inputs_that_disagree(worker) -> None:
    case = cases.energy(FP16, 1, 5, 1, 16, 24)
    case.inputs[1] = case.inputs[1][:, :4].contiguous()
    assert "q has batch and tokens 1, 5, x has 1, 4" in worker(w.enqueue, case).messages
    case = cases.centrality(FP16, 1, 5, 2, 24)
    case.inputs[2] = case.inputs[2][:, :1].contiguous()
    assert "they must be [B, N, E], [B, H, E] and [B, H]" in worker(w.enqueue, case).messages


def test_without_a_driver(built) -> None:
    """In a process without libcuda.so.1 the library loads and answers, and an enqueue says what is missing."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a driver")
    script = f"""
import torch
from tests.plugins import cases
from tests.plugins.harness import Harness
harness = Harness({str(built.harness)!r}, {str(built.plugins)!r})
case = cases.energy(torch.float16, 1, 5, 1, 16, 24)
plugin = harness.create(case.op, case.fields)
assert plugin.configure(case.inputs, [torch.empty(s) for s in case.shapes]) > 0
harness.native.harnessEnqueueNowhere(plugin.address)
print(harness.messages())
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "The NVIDIA driver cannot be loaded" in result.stdout


def _symbols(library, which: str) -> list[list[str]]:
    listing = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
    return [line.split() for line in listing.splitlines()]


def test_depends_on_the_c_and_cpp_library_alone(built) -> None:
    """Every undefined symbol is versioned by glibc or libstdc++, or weak; two functions are exported."""
    for *_, kind, symbol in _symbols(built.plugins, "--undefined-only"):
        assert kind == "w" or any(f"@{library}_" in symbol for library in ("GLIBC", "GLIBCXX", "CXXABI")), symbol
    exported = [symbol for *_, symbol in _symbols(built.plugins, "--defined-only")]
    assert sorted(exported) == ["getCreators", "setLoggerFinder"]


def test_every_kernel_is_compiled_for_every_type(built) -> None:
    entries = json.loads(built.table.read_text())
    kinds = {(entry["kernel"], entry["dtype"]) for entry in entries}
    from tests.plugins.launch import KERNELS

    assert {(entry["sm"], entry["ptx"]) for entry in entries} == {(80, False), (86, True)}
    assert kinds == {(kernel.name, dtype) for kernel in KERNELS.values() for dtype in kernel.dtypes}
