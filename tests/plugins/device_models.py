"""Whole models on a GPU with our kernels for their ops: logits against float64, then latency beside PyTorch's own.

What runs is the deployable form in PyTorch, captured into a CUDA graph as every contender is: an engine's products
and fusions are not in it, nor the token selection that the export hoists.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from infsa_deploy.bench.programs import build
from infsa_deploy.config import ModelSource
from infsa_deploy.export.rewrite.deployable import to_deployable
from infsa_deploy.validation.reference import ReferenceRun, rounded_tensors
from infsa_deploy.validation.tolerance import judge_model
from tests.ops.compared import NAMES
from tests.plugins import launch
from tests.plugins.cases import OPS
from tests.plugins.compiled import CompiledKernels

MODELS = ("infvit_linear_4l", "infvit_pure_4l")
CHECKED = ((224, 2), (1024, 1))
TIMED = (
    ("infvit_linear_4l", 224, 1),
    ("infvit_linear_4l", 224, 8),
    ("infvit_linear_4l", 1024, 1),
    ("infvit_linear_4l", 1024, 8),
    ("infvit_linear_4l", 2048, 1),
    ("infvit_linear_4l", 9216, 1),
    ("infvit_pure_4l", 224, 8),
    ("infvit_pure_4l", 1024, 1),
    ("infvit_pure_4l", 2048, 1),
)
REPLAYS_S = 0.4


def use_kernels(code: CompiledKernels) -> None:
    """From now on the ops run our kernels on tensors of a GPU."""
    options = {"code": code, "poison": False}

    def dense(arguments: Sequence[Any]) -> list[Any]:  # as an engine hands tensors over
        return [value.contiguous() if isinstance(value, torch.Tensor) else value for value in arguments]

    def centrality(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pooled, mass, _ = launch.centrality(*dense(arguments), keep=False, **options)
        return pooled, mass, pooled.new_empty(0)  # nothing here reads the third output

    OPS["NeumannAttention"].torch_op.register_kernel("cuda", lambda *a: launch.attend(*dense(a), **options))
    OPS["EnergyPool"].torch_op.register_kernel("cuda", lambda *a: launch.energy(*dense(a), **options))
    OPS["CentralityPool"].torch_op.register_kernel("cuda", centrality)


def _source(model: str, side: int) -> ModelSource:
    return ModelSource(model=model, image_size=(side, side))


def _image(batch: int, side: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(side)
    return torch.randn(batch, 3, side, side, device="cuda", generator=generator).to(dtype)


def comparisons() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Logits of each model and type against the reference in float64, beside the reference in that type."""
    for model in MODELS:
        for side, batch in CHECKED:
            reference, _ = build(_source(model, side), "reference")
            image = _image(batch, side, torch.float16)
            feeds = {"image": image.float().cpu().numpy()}
            exact = ReferenceRun(reference, "fp64", "cuda")(feeds)["logits"]
            for dtype in (torch.float16, torch.bfloat16, torch.float32):
                name = f"{model} {side} {dtype}"
                yield name, functools.partial(_compare, name, reference, feeds, image.to(dtype), exact)


@torch.inference_mode()
def _compare(
    name: str, reference: torch.nn.Module, feeds: dict[str, Any], image: torch.Tensor, exact: np.ndarray
) -> None:
    got = to_deployable(reference).to("cuda", image.dtype)(image).double().cpu().numpy()
    narrow = ReferenceRun(reference, NAMES[image.dtype], "cuda")(feeds)["logits"]
    judged = judge_model(
        got,
        narrow,
        exact,
        NAMES[image.dtype],
        rounded_tensors(reference),
        lambda images, _: np.zeros(len(images), bool),
    )
    assert judged.yardstick_rms <= judged.plausible_rms, (
        f"{name}: the reference itself errs by {judged.yardstick_rms:.2e}"
    )
    assert judged.rms <= judged.rms_bound, f"{name}: error {judged.rms:.2e}, bound {judged.rms_bound:.2e}"
    assert judged.largest <= judged.largest_bound, f"{name}: {judged.largest:.2e} above {judged.largest_bound:.2e}"


@torch.inference_mode()
def time_models(deadline: float, dtype: torch.dtype = torch.float16) -> list[dict[str, Any]]:
    """Milliseconds a call of the reference, the softmax ViT and the deployable form; until the deadline."""
    rows: list[dict[str, Any]] = []
    for model, side, batch in TIMED:
        row: dict[str, Any] = {"model": model, "side": side, "batch": batch, "dtype": str(dtype)}
        rows.append(row)
        if time.monotonic() > deadline:
            row["reason"] = "left out: the time given was over"
            continue
        image = _image(batch, side, dtype)
        reference, _ = build(_source(model, side), "reference")
        softmax, _ = build(_source(model, side), "softmax")
        modules = {"eager": reference, "softmax": softmax, "kernels": to_deployable(reference)}
        for name, module in modules.items():
            try:
                row[f"{name}_ms"] = _replayed_ms(module.to("cuda", dtype), image)
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                row[f"{name}_ms"], row[f"{name}_reason"] = None, str(error).splitlines()[0]
            torch.cuda.empty_cache()
        if row["eager_ms"] and row["kernels_ms"]:
            row["kernels_x_eager"] = row["eager_ms"] / row["kernels_ms"]
    return rows


def _replayed_ms(module: torch.nn.Module, image: torch.Tensor) -> float:
    """Median of a call replayed from a CUDA graph, so that no contender waits for its host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            module(image)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(image)
    first = _elapsed_ms(graph)
    replays = max(3, min(50, int(1000 * REPLAYS_S / first)))
    return statistics.median(_elapsed_ms(graph) for _ in range(replays))


def _elapsed_ms(graph: torch.cuda.CUDAGraph) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
