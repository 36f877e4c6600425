"""Compute each op in float64 as its formula reads, with what a correct program of a type may err by: see tolerance.

Nothing is shared with the ops' own implementations. Products and sums are in float32; of half types each operand of a
product with a matrix is rounded to the type once more, as a tensor core takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from infsa_deploy.validation.tolerance import ROUNDOFF, VARIANCE, Truth, Wide, depth

ROWS = 256  # of an affinity at once
NUDGE = 1e-4  # relative change of an operand by which a direction is measured


def rounding(roundings: float, dtype: str = "fp32") -> float:
    """The variance of so many roundings to a type, relative to a square."""
    return VARIANCE * ROUNDOFF[dtype] ** 2 * roundings


def summed(terms: int, squares: Any, total: Any) -> Any:
    """The variance of a float32 sum, from its number of terms, the sum of their squares and the sum itself."""
    return rounding(terms) * (squares / 2 + total**2 / 3) + rounding(1) * squares


def affinity(q: Any, k: Any, dtype: str) -> tuple[Any, Any]:
    """relu(q k^T / D) of q [R, D] and k [N, D], and the variance of its error; NumPy arrays or PyTorch tensors."""
    D = q.shape[-1]
    scores = q @ k.T / D
    squares = (q**2 @ (k**2).T) / D**2
    variance = summed(D, squares, scores) + rounding(1) * (squares + scores**2) + rounding(1, dtype) * scores**2
    positive = scores > 0
    return scores * positive, variance * (positive | (scores**2 < 36 * variance))


def norm_variance(tokens: int) -> float:
    """The relative variance of rho / (||S||_F + eps): a sum of tokens^2 squares, its root, and three operations."""
    return (2 * rounding(depth(tokens)) / 3 + rounding(1)) / 4 + rounding(4)


def neumann_attention(
    qkv: Wide, *, heads: int, rho: float, hops: int, eps: float, rows: int = 0, dtype: str = "fp32"
) -> list[Truth]:
    """The truth of NeumannAttention: qkv [B, N, 3 H D] -> y [B, rows or N, H D]."""
    B, N, width = qkv.shape
    split = qkv.reshape(B, N, 3, heads, width // (3 * heads)).transpose(0, 3, 2, 1, 4)  # B H 3 N D
    found = [
        [_attended(head[0], head[1], head[2], rho, hops, eps, rows or N, dtype) for head in image] for image in split
    ]
    merged = np.array(found).transpose(2, 0, 3, 1, 4)  # 4 B rows H D
    return [Truth(*merged.reshape(4, B, rows or N, width // 3))]


def _attended(
    q: Wide, k: Wide, v: Wide, rho: float, hops: int, eps: float, rows: int, dtype: str
) -> tuple[Wide, Wide, Wide, Wide]:
    """One head, z <- v + scale S z from z = v: the value and the three deviations of the last hop's scale S z."""
    z, apart, row, response = v, np.zeros_like(v), np.zeros_like(v), np.zeros_like(v)
    for hop in range(hops):
        blocks = [hop_products(q[i : i + ROWS], k, z, apart, row, response, dtype) for i in range(0, len(v), ROWS)]
        y, apart, row, response, common = finished_hop(blocks, rho, eps, dtype)
        if hop < hops - 1:
            z = v + y
            apart = apart + rounding(1) * z**2
    return y[:rows], np.sqrt(apart)[:rows], np.sqrt(row)[:rows], common[:rows]


def finished_hop(
    blocks: Sequence[tuple[Wide, ...]], rho: float, eps: float, dtype: str
) -> tuple[Wide, Wide, Wide, Wide, Wide]:
    """One hop from hop_products of all rows: y, the variances apart and by row, the response to the scale, the rest."""
    total, noise, u, squares, own, cross, apart, row, response = map(np.concatenate, zip(*blocks, strict=True))
    norm = np.sqrt(total.sum())
    scale = rho / (norm + eps)
    through_norm = 1 / (norm * (norm + eps)) if norm else 0.0
    y = scale * u
    response = y + scale * response
    scores = own - 2 * through_norm * u * cross + (through_norm * u) ** 2 * noise
    apart = scale**2 * (apart + summed(len(u), squares, u) + rounding(1, dtype) * squares) + rounding(2) * y**2
    row = scale**2 * (row + np.maximum(scores, 0))
    common = np.abs(response) * np.sqrt(norm_variance(len(u)) + through_norm**2 * (noise.sum() - noise))
    return y, apart, row, response, common


def hop_products(q: Any, k: Any, z: Any, apart: Any, row: Any, response: Any, dtype: str) -> tuple[Any, ...]:
    """What a block of rows of S gives: sums of its squares, S z, squares of its terms, the variances it hands on."""
    S, variance = affinity(q, k, dtype)
    S2, z2 = S**2, z**2
    sums = (S2.sum(-1)[:, None], (variance * S2).sum(-1)[:, None])
    return *sums, S @ z, S2 @ z2, variance @ z2, (variance * S) @ z, S2 @ apart, S2 @ row, S @ response


def energy_pool(q: Wide, x: Wide, *, heads: int, eps: float, dtype: str = "fp32") -> list[Truth]:
    """The truth of EnergyPool: q [B, N, H D], x [B, N, E] -> pooled [B, H, E], mass [B, H]."""
    B, N, width = q.shape
    D = width // heads
    energy = np.sqrt((q.reshape(B, N, heads, D) ** 2).sum(-1) / D).transpose(0, 2, 1)  # B H N
    relative = (rounding(depth(D)) / 3 + rounding(1)) / 4 + rounding(3)
    return _pooled(energy, energy**2 * relative, x, eps)[:2]


def centrality_pool(x: Wide, u: Wide, c: Wide, *, eps: float, dtype: str = "fp32") -> list[Truth]:
    """The truth of CentralityPool: x [B, N, E], u [B, H, E], c [B, H] -> pooled, mass, centrality [B, H, N]."""
    E = x.shape[-1]
    scores = u @ x.transpose(0, 2, 1) + c[..., None]  # B H N
    squares = u**2 @ (x**2).transpose(0, 2, 1) + c[..., None] ** 2
    variance = summed(E + 1, squares, scores) + rounding(1) * squares
    positive = scores > 0
    return _pooled(scores * positive, variance * (positive | (scores**2 < 36 * variance)), x, eps)


def _pooled(weights: Wide, variance: Wide, x: Wide, eps: float) -> list[Truth]:
    """Tokens pooled by weights [B, H, N] with errors of that variance: pooled, mass and the shares of the tokens."""
    N = weights.shape[-1]
    total = weights.sum(-1, keepdims=True)  # B H 1
    weight = total + eps
    shares, spread = weights / weight, variance / weight**2
    pooled = shares @ x
    squares = shares**2 @ x**2
    away = spread @ x**2 - 2 * pooled * (spread @ x) + pooled**2 * spread.sum(-1, keepdims=True)  # (x_n - pooled)^2
    of_total = rounding(depth(N)) / 3 + rounding(2)  # relative
    apart = summed(N, squares, pooled) + rounding(3) * squares
    common = np.abs(pooled) * np.sqrt(of_total)
    mass = (total / weight)[..., 0]
    slack = (eps / weight)[..., 0]
    mass_row = mass * np.sqrt(rounding(2) + slack**2 * (of_total + spread.sum(-1)))
    return [
        Truth(pooled, np.sqrt(apart), np.sqrt(np.maximum(away, 0)), common),
        Truth(mass, np.zeros_like(mass), mass_row, np.zeros_like(mass)),
        Truth(shares, np.sqrt(spread + rounding(1) * shares**2), np.zeros_like(shares), shares * np.sqrt(of_total)),
    ]


TRUTHS: Mapping[str, Callable[..., list[Truth]]] = {
    "NeumannAttention": neumann_attention,
    "EnergyPool": energy_pool,
    "CentralityPool": centrality_pool,
}


def truth_of(op: str, inputs: Sequence[Any], attributes: Mapping[str, float], dtype: str) -> list[Truth]:
    """The outputs of `op` on inputs that hold numbers of `dtype`."""
    wide = [np.asarray(array, np.float64) for array in inputs]
    known = {name: value for name, value in attributes.items() if name != "plugin_outputs"}
    known |= {name: float(np.float32(known[name])) for name in ("rho", "eps") if name in known}  # as a node holds them
    return TRUTHS[op](*wide, **known, dtype=dtype)


def nudged(op: str, inputs: Sequence[Any], operand: int) -> list[Wide]:
    """The inputs with one operand a little larger: 0, 1, 2 of NeumannAttention are q, k and v."""
    wide = [np.asarray(array, np.float64).copy() for array in inputs]
    if op == "NeumannAttention":
        width = wide[0].shape[-1] // 3
        wide[0][..., operand * width : (operand + 1) * width] *= 1 + NUDGE
    else:
        wide[operand] *= 1 + NUDGE
    return wide


def directions(op: str, inputs: Sequence[Any], attributes: Mapping[str, float], operand: int, dtype: str) -> list[Wide]:
    """How each output moves with the logarithm of one operand."""
    before = truth_of(op, inputs, attributes, dtype)
    after = truth_of(op, nudged(op, inputs, operand), attributes, dtype)
    return [(moved.value - still.value) / NUDGE for moved, still in zip(after, before, strict=True)]
