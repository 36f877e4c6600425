"""Infinite Self-Attention as arithmetic on q, k, v, and the attention modules that a ViT is built from.

Axes: B batch, H heads, N tokens, D head size, E = H·D embedding. The formulas are those of the InfSA paper
(arXiv:2603.00175); `rho` is the sigmoid of one learned scalar a layer.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infsa_deploy.errors import UsageError

Hops = int | Literal["inf"]

VARIANTS = ("linear", "pure", "softmax")
EPS = 1e-6
INITIAL_RHO = 0.95


def pure_attention(q: Tensor, k: Tensor, v: Tensor, rho: Tensor | float, hops: Hops = 1, eps: float = EPS) -> Tensor:
    """Sum `rho^t Â^t v` over t = 1..hops, with `Â = relu(q kᵀ / D) / (its Frobenius norm + eps)`.

    One hop is the authors' layer; more hops are the truncated Neumann series, and "inf" is the whole series,
    `((I - rho Â)^-1 - I) v`, which converges because `‖Â‖_F <= 1` and `rho < 1`.
    The sum is taken as `y <- rho Â (v + y)`, hops times from y = 0. It equals the usual Horner form
    `z <- v + rho Â z; y = z - v` but has no subtraction at the end to cancel digits when Â v is small;
    the resolvent is solved for y directly for the same reason: `(I - rho Â) y = rho Â v`.

    Args: q, k, v: [B, H, N, D]. rho: 0-dim tensor or float in (0, 1). hops: >= 1 or "inf".
    Returns: [B, H, N, D] in the dtype of v.
    Raises: UsageError for other hops.
    """
    check_hops(hops)
    scores = torch.relu(q @ k.transpose(-2, -1) / q.shape[-1])  # [B, H, N, N]; 1/D, not 1/√D
    step = rho * (scores / (_frobenius_norm(scores) + eps))
    y: Tensor = step @ v
    if hops == "inf":
        return _resolvent(step, y)
    for _ in range(hops - 1):
        y = step @ (v + y)
    return y


def pure_centrality(q: Tensor, k: Tensor, rho: Tensor | float, hops: Hops = 1, eps: float = EPS) -> Tensor:
    """How much each token gives to all others: the column sums of `Σ rho^t Â^t`, scaled to sum to 1 (but for eps).

    Exchanging q and k transposes Â, so these are the outputs of pure attention when every value is 1.

    Args: q, k: [B, H, N, D]. rho, hops: as pure_attention.
    Returns: [B, H, N].
    """
    given = pure_attention(k, q, torch.ones_like(q[..., :1]), rho, hops, eps)  # [B, H, N, 1]
    return _normalised(given.squeeze(-1), eps)


def _frobenius_norm(matrix: Tensor) -> Tensor:
    """[..., N, N] -> [..., 1, 1]; the norm of the row norms, as one float32 sum of N² terms loses digits."""
    rows = torch.linalg.vector_norm(matrix, dim=-1, keepdim=True)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-2, keepdim=True)
    return norm


def _resolvent(step: Tensor, first_hop: Tensor) -> Tensor:
    solvable = torch.promote_types(step.dtype, torch.float32)  # LAPACK has no half precision
    system = torch.eye(step.shape[-1], dtype=solvable, device=step.device) - step.to(solvable)
    series: Tensor = torch.linalg.solve(system, first_hop.to(solvable))
    return series.to(first_hop.dtype)


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, rho: Tensor | float, power_iterations: int = 1, eps: float = EPS
) -> Tensor:
    """Pool the values by token centrality: one vector a head, the same for every token, in O(N).

    Tokens weigh in by the energy `‖q_n‖`; each power iteration takes the weighted mean query, scores every
    key by it, `s_n = relu(q̄·k_n)`, and normalises the scores into the next weights. One iteration is the
    authors' layer.

    Args: q, k, v: [B, H, N, D]. rho: 0-dim tensor or float in (0, 1). power_iterations: >= 1.
    Returns: [B, H, 1, D] in the dtype of v.
    Raises: UsageError for power_iterations below 1.
    """
    weights = linear_centrality(q, k, power_iterations, eps)
    pooled: Tensor = weights.unsqueeze(-2) @ v  # [B, H, 1, D]
    return rho * pooled


def linear_centrality(q: Tensor, k: Tensor, power_iterations: int = 1, eps: float = EPS) -> Tensor:
    """The weights by which linear attention pools the values; they sum to 1, but for eps.

    Args: q, k: [B, H, N, D]. power_iterations: >= 1.
    Returns: [B, H, N].
    Raises: UsageError for power_iterations below 1.
    """
    check_power_iterations(power_iterations)
    q, k = q * q.shape[-1] ** -0.5, k * k.shape[-1] ** -0.5
    weights = _normalised(torch.linalg.vector_norm(q, dim=-1), eps)  # [B, H, N]
    for _ in range(power_iterations):
        mean_query = weights.unsqueeze(-2) @ q  # [B, H, 1, D]
        weights = _normalised(torch.relu(mean_query @ k.transpose(-2, -1)).squeeze(-2), eps)
    return weights


def _normalised(scores: Tensor, eps: float) -> Tensor:
    return scores / (scores.sum(dim=-1, keepdim=True) + eps)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Standard attention, `softmax(q kᵀ / √D) v`: the baseline. All tensors [B, H, N, D]."""
    return F.scaled_dot_product_attention(q, k, v)


def class_token_row(q: Tensor, k: Tensor) -> Tensor:
    """What the first token attends to: the first row of `softmax(q kᵀ / √D)`; q, k: [B, H, N, D] -> [B, H, N]."""
    first = q[..., :1, :] * q.shape[-1] ** -0.5
    return torch.softmax(first @ k.transpose(-2, -1), dim=-1).squeeze(-2)


def hops_for_tolerance(rho: float, tol: float = 1e-6) -> int:
    """Number of hops after which the rest of the series is below `tol` times the norm of v.

    The rest is at most `Σ_{t>T} rho^t = rho^(T+1) / (1 - rho)`, since `‖Â‖ <= 1`.
    Raises: UsageError unless 0 < rho < 1 and tol > 0.
    """
    if not (0.0 < rho < 1.0 and tol > 0.0):
        raise UsageError(
            f"no number of hops reaches tolerance {tol} at rho {rho}",
            "the series converges for 0 < rho < 1, to a tolerance above 0",
        )
    return max(1, math.ceil(math.log(tol * (1.0 - rho)) / math.log(rho)))


class _ProjectedAttention(nn.Module):
    """The four projections that every attention here shares, and the split into heads."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        self.num_heads = num_heads
        self.batch_first = True
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(-3, -2)  # [B, N, E] -> [B, H, N, D]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError

    def _weigh(self, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Attend among the tokens of x: [B, N, E] -> [B, N, E], same dtype.

        As the authors' module does, every token's row is projected, also where linear attention makes all rows equal.
        """
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        merged = self._attend(q, k, v).expand_as(q).transpose(-3, -2).flatten(-2)  # [B, N, E]
        y: Tensor = self.out_proj(merged)
        return y

    def attention_map(self, x: Tensor) -> Tensor:
        """How much each token of x counts, head by head: [B, N, E] -> [B, H, N], the class token included.

        pure: pure_centrality. linear: linear_centrality. softmax: class_token_row.
        """
        return self._weigh(self._heads(self.q_proj(x)), self._heads(self.k_proj(x)))


class InfSAAttention(_ProjectedAttention):
    """Infinite self-attention: variant "pure" (with hops) or "linear" (with power iterations).

    Parameters: q_proj, k_proj, v_proj, out_proj (Linear E -> E with bias) and rho_logit (0-dim), whose
    sigmoid is rho. The attribute and key names are those of the authors' module.
    Raises: UsageError for another variant, for an embedding the heads do not divide, for hops or power
    iterations below 1, and for either of them on the variant that has no such number.
    """

    def __init__(self, embed_dim: int, num_heads: int, variant: str, hops: Hops = 1, power_iterations: int = 1) -> None:
        super().__init__(embed_dim, num_heads)
        check_variant(variant, VARIANTS[:2])
        check_depth_of_series(variant, hops, power_iterations)
        self.variant = variant
        self.hops = hops
        self.power_iterations = power_iterations
        self.rho_logit = nn.Parameter(torch.tensor(math.log(INITIAL_RHO / (1.0 - INITIAL_RHO))))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rho = torch.sigmoid(self.rho_logit)
        if self.variant == "pure":
            return pure_attention(q, k, v, rho, self.hops)
        return linear_attention(q, k, v, rho, self.power_iterations)

    def _weigh(self, q: Tensor, k: Tensor) -> Tensor:
        if self.variant == "pure":
            return pure_centrality(q, k, torch.sigmoid(self.rho_logit), self.hops)
        return linear_centrality(q, k, self.power_iterations)


class SoftmaxAttention(_ProjectedAttention):
    """Standard multi-head self-attention with the same projections, as the baseline."""

    variant = "softmax"

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return softmax_attention(q, k, v)

    def _weigh(self, q: Tensor, k: Tensor) -> Tensor:
        return class_token_row(q, k)


def check_variant(variant: str, known: tuple[str, ...] = VARIANTS) -> None:
    """Raise UsageError unless the variant is a known one."""
    if variant not in known:
        raise UsageError(f"unknown variant {variant!r}", f"the variants are {', '.join(known)}")


def check_heads(embed_dim: int, num_heads: int) -> None:
    """Raise UsageError unless the heads divide the embedding."""
    if num_heads < 1 or embed_dim % num_heads:
        raise UsageError(
            f"an embedding of {embed_dim} cannot be split into {num_heads} heads",
            "each head takes an equal slice of the embedding",
            f"choose a divisor of {embed_dim}",
        )


def check_hops(hops: Hops) -> None:
    """Raise UsageError unless hops is a whole number >= 1 or "inf"."""
    if hops != "inf" and (not isinstance(hops, int) or isinstance(hops, bool) or hops < 1):
        raise UsageError(f"hops {hops!r} is not possible", 'hops is a whole number >= 1, or "inf"')


def check_power_iterations(power_iterations: int) -> None:
    """Raise UsageError unless power_iterations is a whole number >= 1."""
    whole = isinstance(power_iterations, int) and not isinstance(power_iterations, bool)
    if not whole or power_iterations < 1:
        raise UsageError(
            f"{power_iterations!r} power iterations are not possible", "the number is a whole one, at least 1"
        )


def check_depth_of_series(variant: str, hops: Hops, power_iterations: int) -> None:
    """Raise UsageError for impossible hops or power iterations, and for a number the variant would ignore."""
    check_hops(hops)
    check_power_iterations(power_iterations)
    if hops != 1 and variant != "pure":
        raise UsageError(f"variant {variant} has no hops", "only variant pure sums a Neumann series")
    if power_iterations != 1 and variant != "linear":
        raise UsageError(
            f"variant {variant} has no power iterations", "only variant linear iterates on token centrality"
        )
