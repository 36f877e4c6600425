"""CentralityPool: eager and ONNX body against a plainly written formula."""

from __future__ import annotations

import pytest
import torch

from infsa_deploy.ops.centrality_pool import OP
from tests.ops.compared import check, check_operand, truths
from tests.ops.single_node import run_body

EPS = 1e-6
FP16_LARGEST = 65504


def tensors(B: int, N: int, H: int, E: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(N)
    shapes = ((B, N, E), (B, H, E), (B, H))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def reference(x: torch.Tensor, u: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Head by head, in the type of the inputs."""
    pooled, mass, centrality = [], [], []
    for h in range(u.shape[1]):
        score = torch.relu(torch.einsum("bne,be->bn", x, u[:, h]) + c[:, h, None])
        weight = score.sum(1, keepdim=True) + EPS
        centrality.append(score / weight)
        pooled.append(torch.einsum("bn,bne->be", score / weight, x))
        mass.append(score.sum(1) / weight[:, 0])
    return torch.stack(pooled, 1), torch.stack(mass, 1), torch.stack(centrality, 1)


@pytest.mark.parametrize(("B", "N", "H", "E"), [(1, 1, 1, 5), (2, 5, 3, 70), (1, 197, 2, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_eager_and_body(B, N, H, E, dtype):
    x, u, c = tensors(B, N, H, E, dtype)
    truth = truths(OP, (x, u, c), {"eps": EPS})
    for exact, plain in zip(truth, reference(x.double(), u.double(), c.double()), strict=True):
        torch.testing.assert_close(torch.from_numpy(exact.value), plain, rtol=1e-12, atol=1e-15)
    for found in (OP.torch_op(x, u, c, EPS), run_body(OP, {"x": x, "u": u, "c": c}, {"eps": EPS})):
        check(OP, truth, found, dtype)


def test_float64_stays_float64():
    x, u, c = tensors(1, 33, 2, 12, torch.float64)
    for ours, wide in zip(OP.torch_op(x, u, c, EPS), reference(x, u, c), strict=True):
        torch.testing.assert_close(ours, wide, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("operand", [0, 2])
def test_no_operand_is_systematically_off(operand):
    """The tokens and the offset; seen through the eager op and, exactly the same way, through its body."""
    attributes, runs = {"eps": EPS}, {"eager": [], "body": []}
    for seed in range(8):
        x, u, c = tensors(1, 100 + seed, 2, 24, torch.float32)
        x, c = x + 1, c + 2
        runs["eager"].append(((x, u, c), attributes, OP.torch_op(x, u, c, EPS)[0]))
        runs["body"].append(((x, u, c), attributes, run_body(OP, {"x": x, "u": u, "c": c}, attributes)[0]))
    for found in runs.values():
        check_operand(OP, operand, found)


def test_fp16_where_a_sum_in_fp16_overflows():
    N = 331_776
    x, u, c = tensors(1, N, 1, 4, torch.float16)
    truth = truths(OP, (x, u, c), {"eps": EPS})
    assert torch.relu(x.float() @ u[0].float().T).sum() > FP16_LARGEST
    for found in (OP.torch_op(x, u, c, EPS), run_body(OP, {"x": x, "u": u, "c": c}, {"eps": EPS})):
        check(OP, truth, found, torch.float16)


def test_no_token_answers():
    x, u, c = tensors(1, 6, 2, 5, torch.float32)
    found = OP.torch_op(x.abs(), -u.abs(), -c.abs(), EPS)
    assert all(tensor.abs().max() == 0 for tensor in found)


def test_torch_registration():
    torch.library.opcheck(OP.torch_op, (*tensors(2, 7, 2, 9, torch.float32), EPS))


def test_flops_by_hand():
    # scores: 2*5*3*7 = 210; weighting x: the same
    assert OP.flops({"B": 1, "N": 5, "H": 3, "E": 7}, {}) == 420
