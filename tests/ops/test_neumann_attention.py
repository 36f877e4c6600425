"""NeumannAttention: eager and ONNX body against the reference formula in float64."""

from __future__ import annotations

import pytest
import torch
from infsa_models.attention import pure_attention
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from infsa_deploy.errors import UsageError
from infsa_deploy.ops.neumann_attention import OP, WHOLE_ELEMENTS
from tests.ops.compared import check, check_operand, truths
from tests.ops.single_node import run_body

RHO, EPS = 0.875, 1e-6  # rho is a float32 attribute
FP16_LARGEST = 65504


def packed(B: int, N: int, H: int, D: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(N)
    return (torch.randn(B, N, 3 * H * D, generator=generator) * scale).to(dtype)


def reference(qkv: torch.Tensor, heads: int, hops: int) -> torch.Tensor:
    B, N, width = qkv.shape
    q, k, v = qkv.view(B, N, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
    return pure_attention(q, k, v, RHO, hops).transpose(1, 2).reshape(B, N, -1)


@pytest.mark.parametrize(("B", "N", "H", "D"), [(1, 1, 1, 8), (2, 5, 3, 24), (1, 197, 2, 64)])
@pytest.mark.parametrize("hops", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_eager_and_body(B, N, H, D, hops, dtype):
    qkv = packed(B, N, H, D, dtype=dtype)
    attributes = {"heads": H, "rho": RHO, "hops": hops, "eps": EPS}
    truth = truths(OP, [qkv], attributes)
    plain = reference(qkv.double(), H, hops)
    torch.testing.assert_close(torch.from_numpy(truth[0].value), plain, rtol=1e-12, atol=1e-15)
    check(OP, truth, OP.torch_op(qkv, H, RHO, hops, EPS), dtype)
    check(OP, truth, run_body(OP, {"qkv": qkv}, attributes), dtype)


@pytest.mark.parametrize("N", [5, 197])
def test_values_are_not_systematically_off(N):
    """A relative error of q or of k is none of y, which is normalised by both."""
    attributes, runs = {"heads": 2, "rho": RHO, "hops": 1, "eps": EPS}, {"eager": [], "body": []}
    for seed in range(8):
        qkv = packed(1, N + seed, 2, 8)
        runs["eager"].append(([qkv], attributes, OP.torch_op(qkv, 2, RHO, 1, EPS)))
        runs["body"].append(([qkv], attributes, run_body(OP, {"qkv": qkv}, attributes)[0]))
    for found in runs.values():
        check_operand(OP, 2, found)


# The body casts to float32 before it chooses tiles: each shape takes one type. Other cuts: test_neumann_parts.py.
@pytest.mark.parametrize(
    ("B", "N", "H", "dtype"),
    [(2, 1449, 2, torch.float16), (2, 2050, 2, torch.float32)],
    ids=["one tile a head", "tiles with a padded end"],
)
def test_body_in_tiles(B, N, H, dtype):
    assert B * H * N**2 > WHOLE_ELEMENTS
    qkv = packed(B, N, H, 8, dtype=dtype)
    attributes = {"heads": H, "rho": RHO, "hops": 1, "eps": EPS}
    check(OP, truths(OP, [qkv], attributes), run_body(OP, {"qkv": qkv}, attributes), dtype)


@pytest.mark.parametrize(
    ("B", "N", "H", "hops", "rows", "dtype"),
    [
        (2, 5, 3, 1, 1, torch.float32),
        (2, 5, 3, 1, 1, torch.float16),
        (2, 5, 3, 3, 2, torch.float32),
        (2, 5, 3, 3, 2, torch.float16),
        (2, 5, 3, 2, 5, torch.float32),
        (2, 5, 3, 2, 5, torch.float16),
        (2, 2050, 2, 1, 1, torch.float32),
        (2, 2050, 2, 1, 1501, torch.float32),
        (2, 1449, 2, 1, 1449, torch.float32),
    ],
)
def test_first_rows(B, N, H, hops, rows, dtype):
    """In one piece and in tiles; 1501 rows are two tiles of 751, one row more than is asked for."""
    qkv = packed(B, N, H, 8, dtype=dtype)
    attributes = {"heads": H, "rho": RHO, "hops": hops, "eps": EPS, "rows": rows}
    truth = truths(OP, [qkv], attributes)
    check(OP, truth, OP.torch_op(qkv, H, RHO, hops, EPS, rows), dtype)
    check(OP, truth, run_body(OP, {"qkv": qkv}, attributes), dtype)


@pytest.mark.parametrize(("N", "rows"), [(5, 6), (5, 10), (2897, 2898)])
def test_more_rows_than_tokens(N, rows):
    qkv = packed(1, N, 1, 8)
    with pytest.raises(UsageError, match=f"rows={rows} of {N} tokens"):
        OP.torch_op(qkv, 1, RHO, 1, EPS, rows)
    with pytest.raises(Fail, match="reshape"):
        run_body(OP, {"qkv": qkv}, {"heads": 1, "rho": RHO, "hops": 1, "eps": EPS, "rows": rows})


def test_tiles_keep_the_norm_of_each_head_and_image():
    B, N, H, D = 2, 1500, 2, 8
    qkv = packed(B, N, H, D).view(B, N, 3, H, D)
    qkv[1, :, :2, 1] *= 100  # one head of one image; its output is as large as the others', being normalised
    qkv = qkv.view(B, N, -1)
    attributes = {"heads": H, "rho": RHO, "hops": 1, "eps": EPS}
    check(OP, truths(OP, [qkv], attributes), run_body(OP, {"qkv": qkv}, attributes), torch.float32)


def test_tiles_need_less_than_the_whole():
    axes = {"B": 1, "H": 16, "N": 4097, "D": 64}
    tiled, whole = (OP.workspace_bytes(axes, {"hops": hops}) for hops in (1, 2))
    assert whole > 4 * 16 * 4097**2
    assert tiled < whole / 5


def test_float64_stays_float64():
    qkv = packed(1, 33, 2, 16).double()
    found = OP.torch_op(qkv, 2, RHO, 3, EPS)
    torch.testing.assert_close(found, reference(qkv, 2, 3), rtol=1e-12, atol=1e-15)


def test_fp16_where_a_sum_of_squares_in_fp16_overflows():
    N = 4096
    qkv = packed(1, N, 1, 16, scale=4.0, dtype=torch.float16)
    q, k, _ = qkv.float().view(N, 3, 16).unbind(1)
    scores = torch.relu(q @ k.T / 16)
    assert scores.square().sum() > FP16_LARGEST
    attributes = {"heads": 1, "rho": RHO, "hops": 1, "eps": EPS}
    truth = truths(OP, [qkv], attributes)
    found = OP.torch_op(qkv, 1, RHO, 1, EPS)
    assert found.abs().max() > 0
    check(OP, truth, found, torch.float16)
    check(OP, truth, run_body(OP, {"qkv": qkv}, attributes), torch.float16)


def test_all_scores_negative_gives_zeros():
    qkv = packed(1, 9, 2, 16).view(1, 9, 3, 32)
    qkv[:, :, 0], qkv[:, :, 1] = qkv[:, :, 0].abs(), -qkv[:, :, 1].abs()
    qkv = qkv.view(1, 9, 96)
    assert OP.torch_op(qkv, 2, RHO, 3, EPS).abs().max() == 0
    assert run_body(OP, {"qkv": qkv}, {"heads": 2, "rho": RHO, "hops": 3, "eps": EPS})[0].abs().max() == 0


def test_torch_registration():
    torch.library.opcheck(OP.torch_op, (packed(2, 7, 2, 8), 2, RHO, 2, EPS))
    torch.library.opcheck(OP.torch_op, (packed(2, 7, 2, 8), 2, RHO, 2, EPS, 3))


@pytest.mark.parametrize("wrong", [{"hops": 0}, {"rho": 0.0}, {"rho": 1.5}, {"heads": 0}, {"eps": -1.0}, {"rows": -1}])
def test_attributes_out_of_range(wrong):
    values = {"heads": 2, "rho": RHO, "hops": 1, "eps": EPS} | wrong
    with pytest.raises(UsageError, match=next(iter(wrong))):
        OP.contract.check_attributes(values)
    with pytest.raises(UsageError, match=next(iter(wrong))):
        OP.torch_op(packed(1, 3, 2, 8), *values.values())


def test_flops_by_hand():
    # q k^T: 2*3*5*5*7 = 1050; each of 2 hops another product with the 5 x 5 affinity: 2 * 1050
    assert OP.flops({"B": 1, "H": 3, "N": 5, "D": 7}, {"hops": 2}) == 3 * 1050
    # of the last hop 2 rows of 5
    assert OP.flops({"B": 1, "H": 3, "N": 5, "D": 7}, {"hops": 2, "rows": 2}) == 2 * 1050 + 420
