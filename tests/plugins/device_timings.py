"""The kernels on a GPU against PyTorch on the same inputs: operations and bytes a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tests.plugins import cases, launch
from tests.plugins.compiled import CompiledKernels
from tests.plugins.worker import Case

TOKENS = (197, 1025, 4097, 16385)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def timings(code: CompiledKernels, deadline: float) -> list[dict[str, Any]]:
    """Until the deadline; what is left out then says so."""
    gigabyte = torch.empty(2**29, dtype=torch.float16, device="cuda")
    target = torch.empty_like(gigabyte)
    copy = 2 * gigabyte.numel() * 2 / _milliseconds(lambda: target.copy_(gigabyte)) / 1e6
    rows: list[dict[str, Any]] = [{"copy_gb_per_s": copy, "product_tflop_per_s": _product()}]
    for N in TOKENS:
        for dtype in DTYPES:
            if time.monotonic() > deadline:
                rows.append({"N": N, "dtype": str(dtype), "reason": "left out: the time given was over"})
                continue
            rows.append(_attention(N, dtype, code))
            rows += _pools(N, dtype, code)
    return rows


def _milliseconds(call: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=25, rep=100, return_mode="median")


def _product(side: int = 8192) -> float:
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.float16) for _ in range(2))
    return 2 * side**3 / _milliseconds(lambda: a @ b) / 1e9


def _attention(N: int, dtype: torch.dtype, code: CompiledKernels) -> dict[str, Any]:
    """16 heads of 64 channels: ours, PyTorch eager and compiled where N x N fits, and softmax attention (SDPA)."""
    H, D = 16, 64
    qkv = torch.randn(1, N, 3 * H * D, device="cuda").to(dtype)
    q, k, v = (part.reshape(1, N, H, D).transpose(1, 2) for part in qkv.chunk(3, dim=-1))

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = torch.relu((q / D) @ k.transpose(-1, -2))
        return s @ v * (0.9 / (s.float().square().sum((-1, -2), keepdim=True).sqrt() + cases.EPS)).to(v.dtype)

    compiled = torch.compile(formula, dynamic=False)
    calls: dict[str, Callable[[], Any]] = {
        "kernel": lambda: launch.attend(qkv, H, 0.9, 1, cases.EPS, code=code, poison=False),
        "scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "eager": lambda: formula(q, k, v),
    }
    if dtype == torch.float16:  # compiling takes seconds
        calls["torch_compile"] = lambda: compiled(q, k, v)
    flop = 4 * H * D * N * N
    row: dict[str, Any] = {"op": "NeumannAttention", "N": N, "dtype": str(dtype)}
    for name, call in calls.items():
        try:
            row[f"{name}_tflop_per_s"] = flop / _milliseconds(call) / 1e9
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            row[f"{name}_tflop_per_s"], row[f"{name}_reason"] = None, str(error).splitlines()[0]
    one_row = _milliseconds(lambda: launch.attend(qkv, H, 0.9, 1, cases.EPS, rows=1, code=code, poison=False))
    row["time_of_one_row"] = one_row / _milliseconds(calls["kernel"])  # the last layer of a classifier asks for one
    return row


def _pools(N: int, dtype: torch.dtype, code: CompiledKernels) -> list[dict[str, Any]]:
    """8 images, 16 heads, E = 1024: bytes of the inputs over time."""
    rows = []
    for case in (cases.energy(dtype, 8, N, 16, 64, 1024), cases.centrality(dtype, 8, N, 16, 1024)):
        inputs = [tensor.cuda() for tensor in case.inputs]
        size = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
        calls = {"kernel": ours(case, inputs, code=code, poison=False), "eager": _eager(case, inputs)}
        row: dict[str, Any] = {"op": case.op, "N": N, "batch": 8, "dtype": str(dtype)}
        row |= {f"{name}_gb_per_s": size / _milliseconds(call) / 1e6 for name, call in calls.items()}
        rows.append(row)
    return rows


def _eager(case: Case, inputs: list[torch.Tensor]) -> Callable[[], Any]:
    op = cases.OPS[case.op].torch_op
    return lambda: op(*inputs, *case.fields.values())


def ours(case: Case, inputs: list[torch.Tensor], **where: Any) -> Callable[[], Any]:
    """The op of `case` by launches of our kernels, on `inputs`."""
    function = {"NeumannAttention": launch.attend, "EnergyPool": launch.energy, "CentralityPool": launch.centrality}
    return lambda: function[case.op](*inputs, *case.fields.values(), **where)  # type: ignore[operator]
