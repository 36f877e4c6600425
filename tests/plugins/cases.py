"""Inputs of the three ops, and what a plugin's outputs are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infsa_deploy.ops import centrality_pool, energy_pool, neumann_attention
from tests.ops.compared import check as check_outputs
from tests.ops.compared import truths
from tests.plugins.worker import Case

OPS = {op.contract.name: op for op in (neumann_attention.OP, energy_pool.OP, centrality_pool.OP)}
EPS = 1e-6


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def neumann(
    dtype: torch.dtype, B: int, N: int, H: int, D: int, hops: int = 1, rows: int = 0, scale: float = 1.0, seed: int = 0
) -> Case:
    qkv = normal(B, N, 3 * H * D, scale=scale, seed=seed).to(dtype)
    fields = {"heads": H, "rho": 0.9, "hops": hops, "eps": EPS, "rows": rows}
    return Case("NeumannAttention", fields, [qkv], [(B, rows or N, H * D)])


def energy(dtype: torch.dtype, B: int, N: int, H: int, D: int, E: int, scale: float = 1.0, seed: int = 0) -> Case:
    q, x = normal(B, N, H * D, scale=scale, seed=seed).to(dtype), normal(B, N, E, seed=seed + 1).to(dtype)
    return Case("EnergyPool", {"heads": H, "eps": EPS}, [q, x], [(B, H, E), (B, H)])


def centrality(dtype: torch.dtype, B: int, N: int, H: int, E: int, scale: float = 1.0, seed: int = 0) -> Case:
    x, u = normal(B, N, E, seed=seed).to(dtype), normal(B, H, E, scale=scale / E**0.5, seed=seed + 1).to(dtype)
    c = (normal(B, H, scale=scale, seed=seed + 2) * 0.1).to(dtype)
    return Case("CentralityPool", {"eps": EPS}, [x, u, c], [(B, H, E), (B, H), (B, H, N)])


def check(case: Case, got: Sequence[torch.Tensor]) -> None:
    """Each output of the inputs' type and within the tolerance."""
    op, dtype = OPS[case.op], case.inputs[0].dtype
    truth = truths(op, case.inputs, case.fields)
    assert all(exact.value.any() for exact in truth[: len(got)]), "inputs whose outputs are all zero prove nothing"
    assert {tensor.dtype for tensor in got} == {dtype}
    check_outputs(op, truth, got, dtype)
