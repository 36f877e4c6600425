"""The kernels and the plugin library on a real GPU: numbers first, then timings. Started by scripts/device_check.sh.

    python -m tests.plugins.device_check [--json FILE] [--seconds N] [--prepare SM | --prebuilt]

What runs is the machine code that the library embeds, launched from Python, and the library itself, through a C++
harness. TensorRT is not needed, but for its headers: where the GPU's machine has neither them nor the compilers,
`--prepare 90` builds everything elsewhere, for that SM, and `--prebuilt` then takes it from build/device_check.
Without a GPU, the same cases run in Triton's interpreter and the timings are null with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from infsa_deploy.validation import op_truth
from infsa_deploy.validation.tolerance import Truth, check_each
from tests.ops.compared import NAMES
from tests.plugins import cases, device_models, device_timings, launch
from tests.plugins.build import ROOT, Built, build
from tests.plugins.compiled import CompiledKernels
from tests.plugins.test_centrality_pool import MATRIX as CENTRALITY
from tests.plugins.test_energy_pool import MATRIX as ENERGY
from tests.plugins.test_neumann_attention import MATRIX as NEUMANN
from tests.plugins.worker import Case

BUILT = Built(ROOT / "build" / "device_check")
CODE = BUILT.folder / "code"
LARGE = (4096, 16384, 331776)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def small_cases() -> Iterator[Case]:
    """The shapes of the CPU proof."""
    yield from (cases.neumann(*row, seed=1) for row in NEUMANN)
    yield from (cases.energy(*row) for row in ENERGY)
    yield from (cases.centrality(*row) for row in CENTRALITY)


@dataclass
class Findings:
    """What was checked: how many comparisons held, and what the others said."""

    held: int = 0
    failed: list[str] = field(default_factory=list)

    def check(self, name: str, comparison: Callable[[], Any]) -> Any:
        """Run a comparison; an AssertionError is a finding, and the check goes on."""
        try:
            found = comparison()
            self.held += 1
            return found
        except AssertionError as error:
            self.failed.append(f"{name}: {str(error).splitlines()[0]}")
            return None


def described(case: Case) -> str:
    shapes = " ".join("x".join(map(str, tensor.shape)) for tensor in case.inputs)
    return f"{case.op} {shapes} {case.inputs[0].dtype} {dict(case.fields)}"


def launched(case: Case, device: str, code: CompiledKernels | None) -> list[torch.Tensor]:
    """The op by direct kernel launches."""
    found = device_timings.ours(case, [tensor.to(device) for tensor in case.inputs], code=code)()
    return [found] if isinstance(found, torch.Tensor) else list(found)


def truth_by_blocks(qkv: torch.Tensor, rho: float, eps: float, dtype: str) -> Truth:
    """The truth of one head and one hop, computed on the GPU from 512 rows of the affinity at a time."""
    q, k, v = qkv[0].double().chunk(3, dim=-1)
    zeros = torch.zeros_like(v)
    rho, eps = (float(np.float32(number)) for number in (rho, eps))
    blocks = [
        tuple(part.cpu().numpy() for part in op_truth.hop_products(rows, k, v, zeros, zeros, zeros, dtype))
        for rows in q.split(512)
    ]
    y, apart, row, _, common = op_truth.finished_hop(blocks, rho, eps, dtype)
    return Truth(y[None], np.sqrt(apart)[None], np.sqrt(row)[None], common[None])


def check_large(code: CompiledKernels) -> Findings:
    """N = 4096, 16384 and 331776, one head of 64 channels for attention, 16 heads and E = 1024 for the pools."""
    findings = Findings()
    for N in LARGE:
        for dtype in DTYPES:
            findings.check(f"NeumannAttention N={N} {dtype}", lambda N=N, dtype=dtype: _large_attention(N, dtype, code))
            if dtype == torch.float32 and N > 16384:
                continue  # the float64 copies of 16 heads by 1024 channels alone would take minutes
            for case in (cases.energy(dtype, 1, N, 16, 64, 1024), cases.centrality(dtype, 1, N, 16, 1024)):
                findings.check(described(case), lambda case=case: _large_pool(case, code))
    return findings


def _large_attention(N: int, dtype: torch.dtype, code: CompiledKernels) -> None:
    qkv = torch.randn(1, N, 192, device="cuda", generator=torch.Generator("cuda").manual_seed(N)).to(dtype)
    truth = truth_by_blocks(qkv, 0.9, cases.EPS, NAMES[dtype])
    got = launch.attend(qkv, 1, 0.9, 1, cases.EPS, code=code)
    assert got.dtype == dtype
    check_each(f"NeumannAttention N={N} {dtype}", got.double().cpu().numpy(), truth, NAMES[dtype])


def _large_pool(case: Case, code: CompiledKernels) -> None:
    moved = Case(case.op, case.fields, [tensor.cuda() for tensor in case.inputs], case.shapes)
    first, second = launched(moved, "cuda", code), launched(moved, "cuda", code)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True)), "two runs differ"
    cases.check(moved, first)


def prepare(sm: int) -> None:
    """Build the plugin library for one SM, as users do, and the harness; RuntimeError with what a step said."""
    build(BUILT, INFSA_PLUGINS_SM=sm, INFSA_PLUGINS_PTX="OFF", INFSA_PLUGINS_CACHE=CODE)


def check_library(gpu: bool, todo: list[Case]) -> Findings:
    """The plugins through the C++ harness, on the GPU's driver or on the stand-in."""
    from tests.plugins.harness import Harness, StandIn

    if not gpu:
        from tests.plugins.interpret_entry import run

        driver = StandIn(BUILT.driver, BUILT.table, run)
    harness = Harness(BUILT.harness, BUILT.plugins)
    assert harness.native.harnessContext() == 0, harness.messages()
    findings = Findings()
    for case in todo:
        plugin = harness.create(case.op, case.fields)
        assert plugin, harness.messages()
        workspace = plugin.configure(case.inputs, [torch.empty(s, dtype=case.inputs[0].dtype) for s in case.shapes])
        code, outputs = plugin.enqueue(case.inputs, case.shapes, workspace)
        assert code == 0, harness.messages() + ("" if gpu else driver.error)
        findings.check(described(case), lambda case=case, outputs=outputs: cases.check(case, outputs))
        plugin.close()
    return findings


def check_kernels(todo: list[Case], device: str, code: CompiledKernels | None) -> Findings:
    """The kernels launched from Python."""
    findings = Findings()
    for case in todo:
        got = [tensor.cpu() for tensor in launched(case, device, code)]
        findings.check(described(case), lambda case=case, got=got: cases.check(case, got))
    return findings


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--seconds", type=float, default=420, help="start no timing after this long")
    built = parser.add_mutually_exclusive_group()
    built.add_argument("--prepare", type=int, metavar="SM", help="only build, for a GPU of this SM")
    built.add_argument("--prebuilt", action="store_true", help="build nothing: what --prepare made is there")
    return parser.parse_args()


def _without_gpu(result: dict[str, Any]) -> None:
    from tests.plugins import exact_interpreter

    exact_interpreter.install()
    result["reason"] = "no CUDA device: a few cases ran in Triton's interpreter, nothing was timed"
    todo = [case for case in small_cases() if case.inputs[0].shape[1] <= 17]
    result["kernels"], result["library"] = check_kernels(todo, "cpu", None), check_library(False, todo)


def _on_gpu(result: dict[str, Any], deadline: float) -> None:
    code, todo = CompiledKernels(BUILT.table, CODE), list(small_cases())
    result["kernels"], result["library"] = check_kernels(todo, "cuda", code), check_library(True, todo)
    result["large"] = check_large(code)
    result["timings"] = device_timings.timings(code, deadline)
    device_models.use_kernels(code)
    findings = result["models"] = Findings()
    for name, comparison in device_models.comparisons():
        findings.check(name, comparison)
    result["model_timings"] = device_models.time_models(deadline)


def main() -> int:
    options, started = _parsed(), time.monotonic()
    if options.prepare:
        prepare(options.prepare)
        return 0
    gpu = torch.cuda.is_available()
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if gpu else None, "torch": torch.__version__}
    major, minor = torch.cuda.get_device_capability() if gpu else (8, 0)
    if not options.prebuilt:
        prepare(10 * major + minor)
    try:
        if gpu:
            _on_gpu(result, started + options.seconds)
        else:
            _without_gpu(result)
    finally:
        result["seconds"] = round(time.monotonic() - started)
        text = json.dumps(result, indent=1, default=asdict)
        print(text)
        if options.json:
            options.json.write_text(text + "\n")
    return 1 if any(found.failed for found in result.values() if isinstance(found, Findings)) else 0


if __name__ == "__main__":
    sys.exit(main())
