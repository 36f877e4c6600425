"""Kernels in the interpreter against the formulas: odd sizes, NaN in every buffer, three types."""

from __future__ import annotations

import pytest
import torch

from infsa_deploy.ops import centrality_pool, energy_pool, neumann_attention
from tests.ops.compared import check, check_operand, truths
from tests.plugins import exact_interpreter, launch
from tests.plugins.cases import normal

exact_interpreter.install()

NEUMANN, ENERGY, CENTRALITY = neumann_attention.OP, energy_pool.OP, centrality_pool.OP


def attention(heads: int, rho: float, hops: int, eps: float, rows: int = 0) -> dict[str, float]:
    return {"heads": heads, "rho": rho, "hops": hops, "eps": eps, "rows": rows}


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("B", "N", "H", "D", "hops", "rows", "scale"),
    [
        (1, 1, 1, 24, 1, 0, 1),
        (2, 17, 3, 24, 3, 0, 60),
        (1, 197, 2, 64, 2, 0, 1),
        (1, 131, 1, 128, 1, 0, 0.001),
        (3, 65, 1, 16, 2, 0, 4),
        (2, 131, 1, 128, 1, 1, 1),
        (2, 150, 1, 16, 3, 130, 1),
        (1, 513, 1, 24, 1, 0, 1),
    ],
)
def test_neumann_attention(
    dtype: torch.dtype, B: int, N: int, H: int, D: int, hops: int, rows: int, scale: float
) -> None:
    qkv = normal(B, N, 3 * H * D, scale=scale).to(dtype)
    arguments = (H, 0.9, hops, 1e-6, rows)
    got = launch.attend(qkv, *arguments)
    assert got.dtype == dtype
    check(NEUMANN, truths(NEUMANN, [qkv], attention(*arguments)), got, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("B", "N", "H", "D", "E", "scale"),
    [
        (1, 1, 1, 24, 24, 1),
        (2, 17, 3, 24, 72, 60),
        (1, 197, 20, 64, 264, 1),
        (3, 65, 2, 128, 320, 0.001),
        (1, 1025, 1, 24, 72, 1),
    ],
)
def test_energy_pool(dtype: torch.dtype, B: int, N: int, H: int, D: int, E: int, scale: float) -> None:
    q, x = normal(B, N, H * D, scale=scale).to(dtype), normal(B, N, E, seed=1).to(dtype)
    got = launch.energy(q, x, H, 1e-6)
    check(ENERGY, truths(ENERGY, [q, x], {"heads": H, "eps": 1e-6}), got, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("B", "N", "H", "E", "scale"),
    [
        (1, 1, 1, 24, 1),
        (2, 17, 3, 264, 60),
        (1, 100, 20, 72, 1),
        (1, 40, 2, 1000, 0.001),
        (1, 40, 3, 1032, 1),
        (1, 1025, 1, 72, 1),
    ],
)
def test_centrality_pool(dtype: torch.dtype, B: int, N: int, H: int, E: int, scale: float) -> None:
    x, u = normal(B, N, E).to(dtype), normal(B, H, E, scale=scale, seed=1).to(dtype)
    c = (normal(B, H, scale=scale, seed=2) + 0.5 * scale).to(dtype)
    got = launch.centrality(x, u, c, 1e-6)
    check(CENTRALITY, truths(CENTRALITY, [x, u, c], {"eps": 1e-6}), got, dtype)
    assert launch.centrality(x, u, c, 1e-6, keep=False)[0].equal(got[0])


# Each kernel (attend, attend_cut, hop, hop of some rows) with spans of whole tiles of keys and of others: the loop over
# a span is the same code in all.
@pytest.mark.parametrize(
    ("most_keys", "hops", "rows"),
    [(32, 1, 0), (130, 1, 0), (50, 1, 1), (130, 1, 1), (32, 3, 0), (50, 3, 0), (32, 2, 70), (50, 2, 70)],
)
def test_float32_attention_over_spans_of_keys(monkeypatch, most_keys: int, hops: int, rows: int) -> None:
    """131 keys in 5, 3 and 2 spans, whole tiles and not, in one launch each."""
    monkeypatch.setattr(launch, "MOST_KEYS", most_keys)
    qkv = normal(1, 131, 3 * 2 * 24)
    arguments = (2, 0.9, hops, 1e-6, rows)
    check(NEUMANN, truths(NEUMANN, [qkv], attention(*arguments)), launch.attend(qkv, *arguments), torch.float32)


def test_spans_of_keys_round_less_than_one_sum() -> None:
    """The roundings of n additions weigh as sqrt(n): 8 spans should cut the error of one sum to a third or so."""
    N, D = 8192, 24
    qkv = normal(1, N, 3 * D)
    constants = launch.Launcher(qkv).tile("attend", D).constants
    rows = constants["BLOCK_M"]
    q, k, v = qkv[0].double().split(D, -1)
    exact = torch.relu(q[:rows] / D @ k.T) @ v
    errors = []
    for span in (N, N // 8):
        u, ignored = torch.full((1, N, D), float("nan")), torch.zeros(N)
        for begin in range(0, N, span):
            kernel = launch.KERNELS["attend"].function[(1,)]
            kernel(qkv, ignored, u, ignored, N, N, 1, D, 1, begin, begin + span, **constants)
        errors.append((u[0, :rows] - exact).square().mean().sqrt().item())
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_operand_is_systematically_off(dtype: torch.dtype) -> None:
    """The values of attention and the tokens of both pools, over 8 runs each."""
    runs: dict[str, list] = {"values": [], "energy": [], "centrality": []}
    for seed in range(8):
        qkv, q, x = normal(1, 33, 72, seed=seed), normal(1, 33, 24, seed=seed), normal(1, 33, 24, seed=90 + seed) + 1
        u, c = normal(1, 2, 24, seed=seed, scale=0.2), normal(1, 2, seed=seed) + 1
        qkv, q, x, u, c = (tensor.to(dtype) for tensor in (qkv, q, x, u, c))
        runs["values"].append(([qkv], attention(1, 0.9, 1, 1e-6), launch.attend(qkv, 1, 0.9, 1, 1e-6, 0)))
        runs["energy"].append(([q, x], {"heads": 1, "eps": 1e-6}, launch.energy(q, x, 1, 1e-6)[0]))
        runs["centrality"].append(([x, u, c], {"eps": 1e-6}, launch.centrality(x, u, c, 1e-6)[0]))
    check_operand(NEUMANN, 2, runs["values"])
    check_operand(ENERGY, 1, runs["energy"])
    check_operand(CENTRALITY, 0, runs["centrality"])


def test_nan_in_a_query_is_not_hidden() -> None:
    qkv = normal(1, 17, 3 * 16)
    qkv[0, 5, 3] = float("nan")
    assert launch.attend(qkv, 1, 0.9, 1, 1e-6).isnan().all()


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize(("size", "key_size"), [(60000, 60000), (60000, 1e-5), (2e-5, 60000), (1e-5, 1e-5)])
def test_float16_scores_beyond_its_range(size: float, key_size: float, hops: int) -> None:
    """q . k / D spans 1e-10 to 4e9 here, while float16 ends at 65504 and 6e-8; S rounded to it must survive both."""
    qkv = torch.rand(1, 40, 3, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    qkv *= torch.tensor([size, key_size, 1.0])[:, None]
    qkv = qkv.reshape(1, 40, -1).half()
    got = launch.attend(qkv, 1, 0.9, hops, 1e-6)
    check(NEUMANN, truths(NEUMANN, [qkv], attention(1, 0.9, hops, 1e-6)), got, torch.float16)


def test_sums_beyond_float16_neither_overflow_nor_vanish() -> None:
    """sum(e) is 120000 and sum(S^2) 1e11 here, what they are at N = 331776 for values near 1; float16 ends at 65504."""
    q, x = torch.full((1, 600, 16), 200.0).half(), normal(1, 600, 24).half()
    pooled, mass = launch.energy(q, x, 1, 1e-6)
    check(ENERGY, truths(ENERGY, [q, x], {"heads": 1, "eps": 1e-6}), [pooled, mass], torch.float16)
    assert mass.eq(1).all()
    qkv = torch.full((1, 600, 3 * 16), 17.0).half()
    y = launch.attend(qkv, 1, 0.5, 1, 0.0)
    assert y.eq(8.5).all()
