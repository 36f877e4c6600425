"""The attention functions and modules against the authors' outputs and plainly written formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from infsa_models.attention import (
    EPS,
    InfSAAttention,
    SoftmaxAttention,
    hops_for_tolerance,
    linear_attention,
    pure_attention,
    softmax_attention,
)
from safetensors.torch import load_file
from torch import Tensor, nn

from infsa_deploy.errors import UsageError
from tests.models.golden_attention import CASES, golden_inputs


def random_inputs(tokens: int, head_dim: int = 24, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, 3, tokens, head_dim, generator=generator, dtype=torch.float64)
    return q, k, v


def transition(q: Tensor, k: Tensor) -> Tensor:
    """Â of the paper, head by head, written out."""
    result = torch.empty(*q.shape[:-1], q.shape[-2], dtype=q.dtype)
    for b, h in np.ndindex(*q.shape[:2]):
        scores = (q[b, h] @ k[b, h].T / q.shape[-1]).clamp(min=0)
        result[b, h] = scores / (scores.square().sum().sqrt() + EPS)
    return result


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("attention", [pure_attention, linear_attention])
def test_matches_the_authors_outputs(case, attention, golden):
    key = f"{case['name']}/{attention.__name__.removesuffix('_attention')}_infsa"
    expected = torch.from_numpy(np.load(golden / "attention.npz")[key])
    actual = attention(*golden_inputs(case), case["rho"])
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= 1e-10 * float(expected.abs().max())


@pytest.mark.parametrize("hops", [1, 3, "inf"])
def test_all_negative_scores_give_zeros(hops):
    q, k, v = golden_inputs(CASES[-1])
    assert not pure_attention(q, k, v, 0.95, hops).any()
    assert not linear_attention(q, k, v, 0.95, power_iterations=2).any()


def series_bound(hops: int, v: Tensor) -> float:
    """Rounding of `hops` products by a matrix of norm <= 1: each adds at most N machine epsilons of ‖v‖."""
    return 4 * hops * v.shape[-2] * torch.finfo(v.dtype).eps * float(v.norm())


@pytest.mark.parametrize("tokens", [1, 5, 197])
@pytest.mark.parametrize("hops", [1, 2, 3, 5])
def test_hops_sum_the_neumann_series(tokens, hops):
    q, k, v = random_inputs(tokens)
    step = 0.9 * transition(q, k)
    expected = sum(torch.linalg.matrix_power(step, t) @ v for t in range(1, hops + 1))
    actual = pure_attention(q, k, v, 0.9, hops)
    assert float((actual - expected).abs().max()) <= series_bound(hops, v)


@pytest.mark.parametrize("tokens", [1, 5, 197])
def test_infinite_hops_are_the_resolvent(tokens):
    q, k, v = random_inputs(tokens)
    identity = torch.eye(tokens, dtype=torch.float64)
    expected = torch.linalg.solve(identity - 0.9 * transition(q, k), v) - v
    actual = pure_attention(q, k, v, 0.9, "inf")
    # The condition number of I - rho Â is at most (1 + rho) / (1 - rho) = 19.
    assert float((actual - expected).abs().max()) <= 19 * series_bound(1, v)


@pytest.mark.parametrize("rho", [0.5, 0.95])
def test_infinite_hops_are_the_limit_of_the_sum(rho):
    q, k, v = random_inputs(50)
    tol = 1e-6
    truncated = pure_attention(q, k, v, rho, hops_for_tolerance(rho, tol))
    remainder = (pure_attention(q, k, v, rho, "inf") - truncated).norm(dim=(-2, -1))
    assert (remainder <= tol * v.norm(dim=(-2, -1))).all()


def test_infinite_hops_in_half_precision():
    q, k, v = (tensor.half() for tensor in random_inputs(5))
    actual = pure_attention(q, k, v, 0.9, "inf")
    expected = pure_attention(q.double(), k.double(), v.double(), 0.9, "inf")
    assert actual.dtype == torch.float16
    # Rounding rho Â to half perturbs the system by 2^-11, amplified at most 19 times (see above).
    assert float((actual - expected).abs().max()) <= 19 * 2**-11 * float(v.double().norm())


def test_the_norm_keeps_its_digits_over_many_tokens():
    """The rounding of sums over N tokens grows as √N; a single sum over N·N scores would lose some 1e-4 here."""
    tokens = 4096
    q, k, v = (tensor[:1, :1].float() for tensor in random_inputs(tokens, head_dim=4))
    expected = pure_attention(q.double(), k.double(), v.double(), 0.9)
    actual = pure_attention(q, k, v, 0.9).double()
    assert relative_error(actual, expected) <= math.sqrt(tokens) * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("hops", [1, 4, "inf"])
def test_a_small_sum_beside_large_values_keeps_its_digits(hops):
    """Token 1 barely attends to itself, so its y is a millionth of its v: `z - v` would lose six digits."""
    q = torch.tensor([[1.0, 0.0], [0.0, 1e-3]])[None, None]
    v = torch.tensor([[3.0, 5.0], [7.0, 11.0]])[None, None]
    actual = pure_attention(q, q, v, 0.5, hops)[0, 0, 1].double()
    expected = pure_attention(q.double(), q.double(), v.double(), 0.5, hops)[0, 0, 1]
    assert relative_error(actual, expected) <= 16 * torch.finfo(torch.float32).eps


def plain_linear(q: np.ndarray, k: np.ndarray, v: np.ndarray, rho: float, iterations: int) -> np.ndarray:
    """One head, token by token: q, k, v [N, D] -> [D]."""
    tokens, head_dim = q.shape
    q, k = q / math.sqrt(head_dim), k / math.sqrt(head_dim)
    energy = [math.sqrt(sum(c * c for c in q[n])) for n in range(tokens)]
    weights = [e / (sum(energy) + EPS) for e in energy]
    for _ in range(iterations):
        mean_query = sum(weights[n] * q[n] for n in range(tokens))
        scores = [max(0.0, float(mean_query @ k[n])) for n in range(tokens)]
        weights = [s / (sum(scores) + EPS) for s in scores]
    return rho * sum(weights[n] * v[n] for n in range(tokens))


@pytest.mark.parametrize("tokens", [1, 5, 197])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_power_iterations_follow_the_plain_formula(tokens, iterations):
    q, k, v = random_inputs(tokens)
    actual = linear_attention(q, k, v, 0.8, iterations)
    assert actual.shape == (2, 3, 1, 24)
    for b, h in np.ndindex(2, 3):
        expected = plain_linear(q[b, h].numpy(), k[b, h].numpy(), v[b, h].numpy(), 0.8, iterations)
        np.testing.assert_allclose(actual[b, h, 0].numpy(), expected, rtol=0, atol=1e-12)


def test_softmax_follows_the_plain_formula():
    q, k, v = random_inputs(7)
    expected = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(24), dim=-1) @ v
    assert relative_error(softmax_attention(q, k, v), expected) <= 1e-12


@pytest.mark.parametrize("rho", [0.01, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 10.0])
def test_hops_for_tolerance_is_the_least_number_that_suffices(rho, tol):
    hops = hops_for_tolerance(rho, tol)

    def remainder(hops: int) -> float:
        return rho ** (hops + 1) / (1 - rho)

    assert remainder(hops) <= tol
    # The bound is stated for T, with one power to spare; two fewer hops no longer reach it.
    assert hops == 1 or remainder(hops - 2) > tol


@pytest.mark.parametrize(("rho", "tol"), [(0.0, 1e-6), (1.0, 1e-6), (1.5, 1e-6), (0.5, 0.0)])
def test_hops_for_tolerance_refuses_what_cannot_converge(rho, tol):
    with pytest.raises(UsageError, match="no number of hops"):
        hops_for_tolerance(rho, tol)


@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_module_matches_the_authors_module(variant, golden):
    module = InfSAAttention(96, 3, variant)
    module.load_state_dict(load_file(golden / f"module_{variant}_infsa.safetensors"))
    data = np.load(golden / f"module_{variant}_infsa.npz")
    actual = module.double()(torch.from_numpy(data["x"]).double())
    assert relative_error(actual.detach(), torch.from_numpy(data["y"])) <= 1e-10


def test_module_has_what_a_converter_looks_for():
    module = InfSAAttention(12, 3, "pure", hops=2)
    assert (module.num_heads, module.variant, module.batch_first, module.hops) == (3, "pure", True, 2)
    assert module.rho_logit.shape == ()
    assert torch.sigmoid(module.rho_logit).item() == pytest.approx(0.95)
    assert {type(getattr(module, f"{name}_proj")) for name in ("q", "k", "v", "out")} == {nn.Linear}
    module(torch.randn(2, 5, 12)).sum().backward()
    assert module.rho_logit.grad is not None


def test_linear_module_gives_every_token_the_same_vector():
    y = InfSAAttention(12, 3, "linear")(torch.randn(2, 5, 12))
    assert y.shape == (2, 5, 12)
    assert torch.equal(y, y[:, :1].expand_as(y))


def test_softmax_module_matches_torch_multihead_attention():
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = SoftmaxAttention(12, 3).double()
    with torch.no_grad():
        for name, weight, bias in zip("qkv", theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True):
            getattr(ours, f"{name}_proj").weight.copy_(weight)
            getattr(ours, f"{name}_proj").bias.copy_(bias)
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
        x = torch.randn(2, 5, 12, dtype=torch.float64)
        assert relative_error(ours(x), theirs(x, x, x)[0]) <= 1e-12


@pytest.mark.parametrize("hops", [0, -1, 1.5, True, "all", float("inf")])
def test_impossible_hops(hops):
    with pytest.raises(UsageError, match="hops"):
        pure_attention(*random_inputs(5), 0.9, hops)
    with pytest.raises(UsageError, match="hops"):
        InfSAAttention(12, 3, "pure", hops=hops)


@pytest.mark.parametrize("power_iterations", [0, -1, 1.5, True, "inf"])
def test_impossible_power_iterations(power_iterations):
    with pytest.raises(UsageError, match="power iterations"):
        linear_attention(*random_inputs(5), 0.9, power_iterations)
    with pytest.raises(UsageError, match="power iterations"):
        InfSAAttention(12, 3, "linear", power_iterations=power_iterations)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "cubic"}, "unknown variant 'cubic'"),
        ({"variant": "softmax"}, "unknown variant 'softmax'"),
        ({"variant": "pure", "num_heads": 5}, "12 cannot be split into 5 heads"),
        ({"variant": "pure", "num_heads": 0}, "12 cannot be split into 0 heads"),
        ({"variant": "linear", "hops": 2}, "linear has no hops"),
        ({"variant": "pure", "power_iterations": 2}, "pure has no power iterations"),
    ],
)
def test_impossible_modules(arguments, message):
    with pytest.raises(UsageError, match=message):
        InfSAAttention(**{"embed_dim": 12, "num_heads": 3, **arguments})
