"""Other attentions of linear cost in the same ViT, to measure against: Linformer and Performer.

Small reference modules of the published formulas, for the cost of running them; they come untrained.
Axes: B batch, H heads, N tokens, D head size, E = H·D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from infsa_deploy.errors import UsageError
from infsa_models.attention import softmax_attention
from infsa_models.vit import ViT, ViTConfig

LINFORMER_RANK = 256


class LinformerAttention(nn.Module):
    """Softmax attention to R learned mixtures of the tokens (arXiv:2006.04768, equation 7), shared by the heads.

    Keys and values are projected along the token axis by two matrices [R, N], so the module takes one N only.
    Parameters: q_proj, k_proj, v_proj, out_proj (Linear E -> E), key_mix and value_mix [R, N].
    """

    def __init__(self, embed_dim: int, num_heads: int, tokens: int, rank: int = LINFORMER_RANK) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        rank = min(rank, tokens)
        self.key_mix = nn.Parameter(torch.randn(rank, tokens) / math.sqrt(tokens))
        self.value_mix = nn.Parameter(torch.randn(rank, tokens) / math.sqrt(tokens))

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, E] -> [B, N, E]."""
        q = _split(self.q_proj(x), self.num_heads)
        k = _split(self.key_mix @ self.k_proj(x), self.num_heads)  # [B, H, R, D]
        v = _split(self.value_mix @ self.v_proj(x), self.num_heads)
        y: Tensor = self.out_proj(_merge(softmax_attention(q, k, v)))
        return y


class PerformerAttention(nn.Module):
    """Softmax attention through positive random features (FAVOR+, arXiv:2009.14794, section 2.3), in O(N).

    Parameters: q_proj, k_proj, v_proj, out_proj (Linear E -> E); a fixed buffer `directions` [M, D] of orthogonal
    rows with the norms of Gaussian ones, M = D ln D features.
    """

    directions: Tensor

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        width = embed_dim // num_heads
        self.register_buffer("directions", orthogonal_directions(max(1, int(width * math.log(width))), width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, E] -> [B, N, E]."""
        q, k, v = (_split(project(x), self.num_heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        y: Tensor = self.out_proj(_merge(performer_attention(q, k, v, self.directions)))
        return y


def performer_attention(q: Tensor, k: Tensor, v: Tensor, directions: Tensor, eps: float = 1e-6) -> Tensor:
    """`φ(q) (φ(k)ᵀ v) / (φ(q) φ(k)ᵀ 1)`, an estimate of softmax attention.

    Args: q, k, v: [B, H, N, D]. directions: [M, D].
    Returns: [B, H, N, D] in the dtype of v.
    """
    query, key = _features(q, directions, dim=(-1,)), _features(k, directions, dim=(-2, -1))
    weight = query @ key.sum(dim=-2, keepdim=True).transpose(-2, -1)  # [B, H, N, 1]
    y: Tensor = query @ (key.transpose(-2, -1) @ v) / (weight + eps)
    return y


def _features(x: Tensor, directions: Tensor, dim: tuple[int, ...]) -> Tensor:
    """`exp(w·x - |x|²/2)` a direction w, with x scaled by D^-1/4; [B, H, N, D] -> [B, H, N, M].

    The largest exponent is taken off over `dim`, where that cancels in the quotient: a token's own for queries,
    everybody's for keys.
    """
    x = x * x.shape[-1] ** -0.25
    exponent = x @ directions.T - x.square().sum(dim=-1, keepdim=True) / 2
    return (exponent - exponent.amax(dim=dim, keepdim=True)).exp()


def orthogonal_directions(count: int, width: int) -> Tensor:
    """[count, width]: blocks of orthogonal rows, each row as long as a Gaussian vector of that width."""
    blocks = [torch.linalg.qr(torch.randn(width, width))[0] for _ in range(-(-count // width))]
    lengths: Tensor = torch.linalg.vector_norm(torch.randn(count, width), dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * lengths


def build(name: str, config: ViTConfig) -> ViT:
    """A ViT of the sizes in `config` with the attention of that name; UsageError for another name."""
    if name not in BASELINES:
        raise UsageError(f"unknown baseline {name!r}", f"there are {', '.join(BASELINES)}")
    model = ViT(config)
    for block in model.blocks:
        block.attention = BASELINES[name](config)
    return model


def _split(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)  # [B, N, E] -> [B, H, N, D]


def _merge(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)  # [B, H, N, D] -> [B, N, E]


BASELINES: dict[str, Callable[[ViTConfig], nn.Module]] = {
    "linformer": lambda config: LinformerAttention(config.embed_dim, config.num_heads, config.tokens),
    "performer": lambda config: PerformerAttention(config.embed_dim, config.num_heads),
}
