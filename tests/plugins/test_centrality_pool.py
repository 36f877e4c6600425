"""CentralityPool through the plugin: C++ host code and kernels, against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from tests.plugins import cases
from tests.plugins import worker as w

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16

# The host code with every value of H, batch and type, N of one tile, of some and of a run for each multiprocessor, each
# variant of the kernel (256, 512, 1024 channels) and the two-pass path beyond it; E never a multiple of its block.
# Numbers over many tiles are the subject of test_kernels.py.
MATRIX = [
    (FP32, 1, 1, 1, 24),
    (FP16, 3, 1, 16, 264),
    (BF16, 1, 1, 3, 520),
    (FP32, 3, 17, 3, 264),
    (FP16, 1, 17, 20, 1000),
    (BF16, 3, 17, 1, 1032),
    (FP32, 1, 130, 16, 200),
    (FP16, 3, 130, 3, 72),
    (BF16, 1, 130, 20, 136),
    (FP32, 1, 300, 1, 72),
    (FP16, 1, 300, 1, 328),
    (BF16, 2, 300, 3, 72),
    (FP16, 1, 70, 2, 1032),
]


@pytest.mark.parametrize(("dtype", "B", "N", "H", "E"), MATRIX, ids=str)
def test_shapes(worker, dtype: torch.dtype, B: int, N: int, H: int, E: int) -> None:
    case = cases.centrality(dtype, B, N, H, E)
    outcome = worker(w.enqueue, case)
    assert outcome.code == 0, outcome.messages
    fused = (256 if dtype == FP32 else 1024) >= E
    first = ["score_and_pool"] if fused else ["score", "pool"]
    assert [name for name, _ in outcome.launches] == [*first, "combine", "centralities"]
    cases.check(case, outcome.outputs)


@pytest.mark.parametrize("E", [72, 1032])
def test_node_without_the_third_output(worker, E: int) -> None:
    """It is not computed, and the others stay bit-identical."""
    case = cases.centrality(FP16, 1, 20, 3, E)
    less = w.Case(case.op, case.fields | {"plugin_outputs": 2}, case.inputs, case.shapes[:2])
    with_it, without = worker(w.enqueue, case), worker(w.enqueue, less)
    assert without.code == 0, without.messages
    assert "centralities" not in dict(without.launches)
    assert all(a.equal(b) for a, b in zip(with_it.outputs, without.outputs, strict=False))


def test_positive_offset_counts_tokens_once(worker) -> None:
    """relu(x . u + c) of the zeros beyond the last token is c, and must not be summed."""
    case = cases.centrality(FP32, 8, 33, 2, 24)
    case.inputs[2][:] = 5.0
    cases.check(case, worker(w.enqueue, case).outputs)


def test_scores_beyond_float16(worker) -> None:
    """r is about 1e6, beyond float16, and its sum 5e7."""
    case = cases.centrality(FP16, 1, 50, 1, 72)
    case.inputs[0][:] = cases.normal(1, 50, 72, scale=300).abs().half()
    case.inputs[1][:] = 50.0
    cases.check(case, worker(w.enqueue, case).outputs)
