"""EnergyPool: eager and ONNX body against a plainly written formula."""

from __future__ import annotations

import pytest
import torch

from infsa_deploy.ops.energy_pool import OP
from tests.ops.compared import check, check_operand, truths
from tests.ops.single_node import run_body

EPS = 1e-6
FP16_LARGEST = 65504


def tensors(B: int, N: int, H: int, D: int, E: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(N)
    return tuple(torch.randn(B, N, width, generator=generator).to(dtype) for width in (H * D, E))


def reference(q: torch.Tensor, x: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Head by head, in the type of the inputs."""
    pooled, mass = [], []
    for head in q.chunk(heads, dim=-1):
        energy = head.square().sum(-1).sqrt() / head.shape[-1] ** 0.5  # B N
        weight = energy.sum(1, keepdim=True) + EPS
        pooled.append(torch.einsum("bn,bne->be", energy / weight, x))
        mass.append(energy.sum(1) / weight[:, 0])
    return torch.stack(pooled, 1), torch.stack(mass, 1)


@pytest.mark.parametrize(("B", "N", "H", "D", "E"), [(1, 1, 1, 8, 5), (2, 5, 3, 24, 70), (1, 197, 2, 64, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_eager_and_body(B, N, H, D, E, dtype):
    q, x = tensors(B, N, H, D, E, dtype)
    attributes = {"heads": H, "eps": EPS}
    truth = truths(OP, (q, x), attributes)
    for exact, plain in zip(truth, reference(q.double(), x.double(), H), strict=True):
        torch.testing.assert_close(torch.from_numpy(exact.value), plain, rtol=1e-12, atol=1e-15)
    for found in (OP.torch_op(q, x, H, EPS), run_body(OP, {"q": q, "x": x}, attributes)):
        check(OP, truth, found, dtype)


def test_tokens_are_not_systematically_off():
    attributes, runs = {"heads": 2, "eps": EPS}, {"eager": [], "body": []}
    for seed in range(8):
        q, x = tensors(1, 100 + seed, 2, 8, 24, torch.float32)
        x = x + 1
        runs["eager"].append(((q, x), attributes, OP.torch_op(q, x, 2, EPS)[0]))
        runs["body"].append(((q, x), attributes, run_body(OP, {"q": q, "x": x}, attributes)[0]))
    for found in runs.values():
        check_operand(OP, 1, found)


def test_float64_stays_float64():
    q, x = tensors(1, 33, 2, 8, 12, torch.float64)
    for ours, wide in zip(OP.torch_op(q, x, 2, EPS), reference(q, x, 2), strict=True):
        torch.testing.assert_close(ours, wide, rtol=1e-12, atol=1e-15)


def test_fp16_where_a_sum_in_fp16_overflows():
    N = 331_776  # tokens of a 9216 x 9216 image in patches of 16
    q, x = tensors(1, N, 1, 4, 3, torch.float16)
    assert q.float().norm(dim=-1).sum() / 2 > FP16_LARGEST
    shifted, attributes = (x.double() + 0.5).half(), {"heads": 1, "eps": EPS}
    truth = truths(OP, (q, shifted), attributes)
    for found in (OP.torch_op(q, shifted, 1, EPS), run_body(OP, {"q": q, "x": shifted}, attributes)):
        check(OP, truth, found, torch.float16)


def test_torch_registration():
    torch.library.opcheck(OP.torch_op, (*tensors(2, 7, 2, 4, 9, torch.float32), 2, EPS))


def test_flops_by_hand():
    # squares and sums of q: 2*5*6 = 60; weighting x: 2*5*3*7 = 210
    assert OP.flops({"B": 1, "N": 5, "H": 3, "D": 2, "E": 7}, {}) == 60 + 210
