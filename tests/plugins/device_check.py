"""The kernels and the plugin library on a real GPU: numbers first, then timings. Started by scripts/device_check.sh.

    python -m tests.plugins.device_check [--json FILE] [--seconds N]

Without a GPU, the same cases run in Triton's interpreter and the timings are null with the reason. TensorRT is not
needed; where its headers can be found, the plugin library is built and driven through the C++ harness too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from tests.plugins import cases, launch
from tests.plugins.test_centrality_pool import MATRIX as CENTRALITY
from tests.plugins.test_energy_pool import MATRIX as ENERGY
from tests.plugins.test_neumann_attention import MATRIX as NEUMANN
from tests.plugins.tolerance import assert_close
from tests.plugins.worker import Case

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "device_check"
LARGE = (4096, 16384, 331776)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def small_cases() -> Iterator[Case]:
    """The shapes of the CPU proof."""
    yield from (cases.neumann(*row, seed=1) for row in NEUMANN)
    yield from (cases.energy(*row) for row in ENERGY)
    yield from (cases.centrality(*row) for row in CENTRALITY)


def launched(case: Case, device: str) -> list[torch.Tensor]:
    """The op by direct kernel launches."""
    inputs = [tensor.to(device) for tensor in case.inputs]
    if case.op == "NeumannAttention":
        return [launch.attend(*inputs, *case.fields.values())]
    if case.op == "EnergyPool":
        return list(launch.energy(*inputs, *case.fields.values()))
    return list(launch.centrality(*inputs, *case.fields.values()))


def neumann_by_blocks(qkv: torch.Tensor, rho: float, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """One head, one hop, in `dtype`, never holding more than 1024 rows of the affinity."""
    q, k, v = qkv[0].to(dtype).chunk(3, dim=-1)
    parts, total = [], torch.zeros((), dtype=torch.float64, device=qkv.device)
    for rows in q.split(1024):
        s = torch.relu((rows / q.shape[-1]) @ k.T)
        total += s.square().sum(-1).double().sum()
        parts.append(s @ v)
    return (torch.cat(parts) * (rho / (total.sqrt() + eps)).to(dtype)).unsqueeze(0)


def check_large(device: str) -> list[dict[str, Any]]:
    """N = 4096, 16384 and 331776, one head of 64 channels for attention, 16 heads and E = 1024 for the pools."""
    results = []
    for N in LARGE:
        for dtype in DTYPES:
            qkv = torch.randn(1, N, 192, device=device, generator=torch.Generator(device).manual_seed(N)).to(dtype)
            exact = neumann_by_blocks(qkv, 0.9, cases.EPS, torch.float64)
            eager = neumann_by_blocks(qkv, 0.9, cases.EPS, torch.float32).to(dtype)
            got = launch.attend(qkv, 1, 0.9, 1, cases.EPS)
            results.append({"op": "NeumannAttention", "N": N, "dtype": str(dtype)})
            results[-1]["ratio"] = assert_close(f"NeumannAttention N={N} {dtype}", got, eager, exact)
            if dtype == torch.float32 and N > 16384:
                continue  # the float64 copies of 16 heads by 1024 channels alone would take minutes
            for op, case in (
                ("EnergyPool", cases.energy(dtype, 1, N, 16, 64, 1024)),
                ("CentralityPool", cases.centrality(dtype, 1, N, 16, 1024)),
            ):
                moved = Case(op, case.fields, [tensor.to(device) for tensor in case.inputs], case.shapes)
                first, second = launched(moved, device), launched(moved, device)
                assert all(a.equal(b) for a, b in zip(first, second, strict=True)), f"{op}: two runs differ"
                cases.check(moved, first)
                results.append({"op": op, "N": N, "dtype": str(dtype), "deterministic": True})
    return results


def library(sm: int) -> tuple[Path, Path]:
    """Build the plugin library for one SM, and the harness, with g++ alone."""
    plugins = ROOT / "plugins"
    BUILD.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def run(*command: object) -> str:
        parts = [str(part) for part in command]
        done = subprocess.run(parts, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise RuntimeError(f"{parts[0]} {parts[1]}: {done.stderr.strip()}")
        return done.stdout.strip()

    found = run(sys.executable, plugins / "headers.py", "--into", ROOT / "build" / "headers")
    include = [part for folder in found.split(";") for part in ("-isystem", folder)]
    run(sys.executable, plugins / "aot.py", "--out", BUILD, "--sm", sm, "--no-ptx")
    compiler = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-Wno-deprecated-declarations", *include]
    sources = [*plugins.glob("src/*.cpp"), *plugins.glob("infsa_plugins/*/plugin.cpp"), BUILD / "kernels.S"]
    run(*compiler, "-I", plugins / "src", "-I", BUILD, *sources, "-o", BUILD / "libinfsa_plugins.so", "-ldl")
    native = ROOT / "tests" / "plugins" / "native"
    run(*compiler, native / "harness.cpp", "-o", BUILD / "libharness.so", "-ldl")
    run(*compiler, native / "stand_in_driver.cpp", "-o", BUILD / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    return BUILD / "libinfsa_plugins.so", BUILD / "libharness.so"


def check_library(sm: int, gpu: bool, todo: list[Case]) -> dict[str, Any]:
    """The plugins through the C++ harness: on the GPU's driver, or on the stand-in."""
    from tests.plugins.harness import Harness, StandIn

    missing = [tool for tool in ("g++",) if not shutil.which(tool)]
    if missing:
        return {"cases": None, "reason": f"{missing[0]} is missing"}
    try:
        plugins, native = library(sm)
    except RuntimeError as error:
        return {"cases": None, "reason": str(error)}
    if not gpu:
        from tests.plugins.interpret_entry import run

        driver = StandIn(BUILD / "libcuda.so.1", BUILD / "kernels.json", run)
    harness = Harness(native, plugins)
    assert harness.native.harnessContext() == 0, harness.messages()
    for case in todo:
        plugin = harness.create(case.op, case.fields)
        assert plugin, harness.messages()
        workspace = plugin.configure(case.inputs, [torch.empty(s, dtype=case.inputs[0].dtype) for s in case.shapes])
        code, outputs = plugin.enqueue(case.inputs, case.shapes, workspace)
        assert code == 0, harness.messages() + ("" if gpu else driver.error)
        cases.check(case, outputs)
        plugin.close()
    return {"cases": len(todo), "reason": ""}


def milliseconds(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=50, rep=200, return_mode="median")


def time_attention(N: int, dtype: torch.dtype) -> dict[str, Any]:
    """16 heads of 64 channels: ours, PyTorch eager and compiled where N x N fits, and softmax attention (SDPA)."""
    H, D = 16, 64
    qkv = torch.randn(1, N, 3 * H * D, device="cuda").to(dtype)
    q, k, v = (part.reshape(1, N, H, D).transpose(1, 2) for part in qkv.chunk(3, dim=-1))

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = torch.relu((q / D) @ k.transpose(-1, -2))
        return s @ v * (0.9 / (s.float().square().sum((-1, -2), keepdim=True).sqrt() + cases.EPS)).to(v.dtype)

    calls: dict[str, Callable[[], Any]] = {
        "kernel": lambda: launch.attend(qkv, H, 0.9, 1, cases.EPS),
        "scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    }
    if N <= 16384:
        calls["eager"] = lambda: formula(q, k, v)
        compiled = torch.compile(formula)
        calls["torch_compile"] = lambda: compiled(q, k, v)
    flop = 4 * H * D * N * N
    row: dict[str, Any] = {"op": "NeumannAttention", "N": N, "dtype": str(dtype)}
    for name, call in calls.items():
        try:
            row[f"{name}_tflop_per_s"] = flop / milliseconds(call) / 1e9
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            row[f"{name}_tflop_per_s"], row[f"{name}_reason"] = None, str(error).splitlines()[0]
    return row


def time_pools(N: int, dtype: torch.dtype, copy_gb_per_s: float) -> list[dict[str, Any]]:
    """16 heads, E = 1024: bytes of the inputs over time, beside what a copy reaches (read and write)."""
    rows = []
    for case in (cases.energy(dtype, 1, N, 16, 64, 1024), cases.centrality(dtype, 1, N, 16, 1024)):
        moved = Case(case.op, case.fields, [tensor.cuda() for tensor in case.inputs], case.shapes)
        eager = cases.OPS[case.op].torch_op
        moved_bytes = sum(tensor.numel() * tensor.element_size() for tensor in moved.inputs)
        row: dict[str, Any] = {"op": case.op, "N": N, "dtype": str(dtype), "copy_gb_per_s": copy_gb_per_s}
        row["kernel_gb_per_s"] = moved_bytes / milliseconds(lambda m=moved: launched(m, "cuda")) / 1e6
        row["eager_gb_per_s"] = (
            moved_bytes / milliseconds(lambda m=moved, e=eager: e(*m.inputs, *m.fields.values())) / 1e6
        )
        rows.append(row)
    return rows


def timings(deadline: float) -> list[dict[str, Any]]:
    """Until the deadline; what is left out then says so."""
    gigabyte = torch.empty(2**29, dtype=torch.float16, device="cuda")
    target = torch.empty_like(gigabyte)
    copy = 2 * gigabyte.numel() * 2 / milliseconds(lambda: target.copy_(gigabyte)) / 1e6
    rows: list[dict[str, Any]] = []
    for N in (197, 1025, *LARGE[:2]):
        for dtype in DTYPES[:2]:
            if time.monotonic() > deadline:
                rows.append({"N": N, "dtype": str(dtype), "reason": "left out: the time given was over"})
                continue
            rows.append(time_attention(N, dtype))
            rows += time_pools(N, dtype, copy)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--seconds", type=float, default=420, help="start no timing after this long")
    options = parser.parse_args()
    started = time.monotonic()
    gpu = torch.cuda.is_available()
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name() if gpu else None, "torch": torch.__version__}
    todo = list(small_cases())
    if not gpu:
        from tests.plugins import exact_interpreter

        exact_interpreter.install()
        result["reason"] = "no CUDA device: a few cases ran in Triton's interpreter, nothing was timed"
        todo = [case for case in todo if case.inputs[0].shape[1] <= 17]
    major, minor = torch.cuda.get_device_capability() if gpu else (8, 0)
    for case in todo:
        cases.check(case, [tensor.cpu() for tensor in launched(case, "cuda" if gpu else "cpu")])
    result["kernels"] = {"cases": len(todo)}
    result["library"] = check_library(10 * major + minor, gpu, todo)
    result["large"] = check_large("cuda") if gpu else None
    result["timings"] = timings(started + options.seconds) if gpu else None
    result["seconds"] = round(time.monotonic() - started)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
