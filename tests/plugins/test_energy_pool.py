"""EnergyPool through the plugin: C++ host code and kernels, against the formula in float64."""

from __future__ import annotations

import pytest
import torch

from tests.plugins import cases
from tests.plugins import worker as w

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16

# The host code with every value of H, D, batch and type, and N of one tile, of some and of a run for each
# multiprocessor; E never a multiple of its block of 128 or 256, and beyond one block. 20 heads are two groups of 16.
# Numbers over many tiles are the subject of test_kernels.py.
MATRIX = [
    (FP32, 1, 1, 1, 24, 24),
    (FP16, 3, 1, 16, 64, 264),
    (BF16, 1, 1, 3, 128, 520),
    (FP32, 3, 17, 3, 64, 136),
    (FP16, 1, 17, 20, 128, 72),
    (BF16, 3, 17, 1, 24, 1032),
    (FP32, 1, 130, 16, 128, 200),
    (FP16, 3, 130, 3, 24, 264),
    (BF16, 1, 130, 20, 64, 24),
    (FP32, 1, 300, 1, 24, 72),
    (FP16, 1, 300, 1, 64, 328),
    (BF16, 2, 300, 3, 128, 72),
]


@pytest.mark.parametrize(("dtype", "B", "N", "H", "D", "E"), MATRIX, ids=str)
def test_shapes(worker, dtype: torch.dtype, B: int, N: int, H: int, D: int, E: int) -> None:
    case = cases.energy(dtype, B, N, H, D, E)
    outcome = worker(w.enqueue, case)
    assert outcome.code == 0, outcome.messages
    assert [name for name, _ in outcome.launches] == ["energies", "pool", "combine"]
    cases.check(case, outcome.outputs)


@pytest.mark.parametrize("scale", [2e-6, 60000.0])
def test_float16_queries_at_both_ends(worker, scale: float) -> None:
    """A query of 2e-6 is subnormal in float16, and so would its energy be; eps is not small beside it."""
    case = cases.energy(FP16, 1, 40, 2, 64, 72)
    case.inputs[0][:] = (cases.normal(1, 40, 128).clamp(-1, 1) * scale).half()
    outcome = worker(w.enqueue, case)
    cases.check(case, outcome.outputs)


@pytest.mark.parametrize("multiprocessors", [1, 3, 132])
def test_number_of_runs(worker, multiprocessors: int) -> None:
    """The tokens are cut finer for a larger GPU; each cut is right, and two runs of one are bit-identical."""
    case = cases.energy(FP32, 1, 500, 2, 16, 40)
    one, two = (worker(w.enqueue, case, multiprocessors=multiprocessors) for _ in range(2))
    blocks = dict(one.launches)["pool"]
    assert blocks == {1: 2, 3: 6, 132: 16}[multiprocessors]
    cases.check(case, one.outputs)
    assert all(a.equal(b) for a, b in zip(one.outputs, two.outputs, strict=True))
