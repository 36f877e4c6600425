"""A stand-in for a user's own model: attention with the attributes of the authors' InfSAAttention, another class.

Written against the attribute names only; its forward cannot be traced (rho is taken out of the graph as a Python
number), as is the case for the authors' module.
"""

from __future__ import annotations

import torch
from infsa_models.attention import linear_attention, pure_attention
from torch import Tensor, nn


class ForeignAttention(nn.Module):
    def __init__(self, width: int, heads: int, variant: str, *, bias: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.rho_logit = nn.Parameter(torch.tensor(1.5))
        self.num_heads, self.variant, self.batch_first = heads, variant, batch_first

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        x = query if self.batch_first else query.transpose(0, 1)
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        attention = pure_attention if self.variant == "pure_infsa" else linear_attention
        y = attention(q, k, v, torch.sigmoid(self.rho_logit).item()).expand_as(q)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        return (y if self.batch_first else y.transpose(0, 1)), None


class ForeignClassifier(nn.Module):
    """Patches, two attention layers of different variants, mean over tokens, logits."""

    def __init__(self, *, bias: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.first = ForeignAttention(24, 3, "linear_infsa", bias=bias, batch_first=batch_first)
        self.second = ForeignAttention(24, 3, "pure_infsa", bias=bias, batch_first=batch_first)
        self.head = nn.Linear(24, 7)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        for attention in (self.first, self.second):
            t = x if attention.batch_first else x.transpose(0, 1)
            y, _ = attention(t, t, t, need_weights=False)
            x = x + (y if attention.batch_first else y.transpose(0, 1))
        return self.head(x.mean(1))


def factory() -> nn.Module:
    torch.manual_seed(5)
    return ForeignClassifier()


def no_attention() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(4 * 28 * 28, 5))


def not_logits() -> nn.Module:
    return nn.Conv2d(3, 4, 8, 8)


def not_a_module() -> str:
    return "a string"


def broken() -> nn.Module:
    raise RuntimeError("weights are on another planet")
