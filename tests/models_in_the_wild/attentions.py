"""Attention as users write it: the authors' attributes and conventions, and what people change in it."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

E, H = 16, 2
Attended = namedtuple("Attended", "tokens weights")


def scores(q: Tensor, k: Tensor, variant: str, eps: float = 1e-6) -> Tensor:
    """Pure: [B, H, N, S]; linear: [B, H, 1, S]."""
    D = q.shape[-1]
    if variant == "pure_infsa":
        affinity = torch.relu(q @ k.transpose(-2, -1) / D)
        return affinity / (affinity.flatten(-2).norm(dim=-1)[..., None, None] + eps)
    energy = (q / D**0.5).norm(dim=-1, keepdim=True)
    mean = (energy * q).sum(-2, keepdim=True) / (energy.sum(-2, keepdim=True) + eps)
    shares = torch.relu(mean @ k.transpose(-2, -1) / D)
    return shares / (shares.sum(-1, keepdim=True) + eps)


class Attention(nn.Module):
    """Stands in for the authors' module; `attend` is what subclasses change."""

    def __init__(self, variant: str = "pure_infsa", *, bias: bool = True, batch_first: bool = True, heads: int = H):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = E, heads, E // heads
        self.variant, self.batch_first, self.dropout = variant, batch_first, 0.1
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(E, E, bias=bias) for _ in range(4))
        self.rho_logit = nn.Parameter(torch.tensor(1.5))

    def heads(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rho = torch.sigmoid(self.rho_logit).item()
        return rho * (scores(q, k, self.variant) @ v)

    def forward(
        self,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if query is None:
            query = key = value = kwargs["hidden_states"]
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self.heads(self.q_proj, query), self.heads(self.k_proj, key), self.heads(self.v_proj, value)
        y = F.dropout(self.attend(q, k, v).expand_as(q), self.dropout, self.training)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        weights = scores(q, k, self.variant).mean(1) if need_weights else None
        return (y if self.batch_first else y.transpose(0, 1)), weights


class QueryKeyNorm(Attention):
    def attend(self, q, k, v):
        return super().attend(F.layer_norm(q, q.shape[-1:]) + 1, F.normalize(k, dim=-1), v)


class Gated(Attention):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.gate = nn.Linear(E, E)

    def forward(self, query, key=None, value=None, **k):
        y, w = super().forward(query, query, query, **k)
        return y * torch.sigmoid(4 * self.gate(query)), w


class Causal(Attention):
    def attend(self, q, k, v):
        return 0.9 * (scores(q, k, "pure_infsa").tril() @ v)


class OwnEps(Attention):
    """Its eps is an attribute: the form takes it."""

    eps = 1e-2

    def attend(self, q, k, v):
        return torch.sigmoid(self.rho_logit).item() * (scores(q, k, self.variant, self.eps) @ v)


class HiddenEps(Attention):
    def attend(self, q, k, v):
        return torch.sigmoid(self.rho_logit) * (scores(q, k, self.variant, 1e-4) @ v)


class RowNormalised(Attention):
    def attend(self, q, k, v):
        affinity = torch.relu(q @ k.transpose(-2, -1))
        return affinity / (affinity.sum(-1, keepdim=True) + 1e-6) @ v


class Clamped(Attention):
    """Differs only where values are large."""

    def attend(self, q, k, v):
        return super().attend(q.clamp(-8, 8), k, v)


class FewTokensOnly(Attention):
    """Differs only where there are many tokens."""

    def attend(self, q, k, v):
        y = super().attend(q, k, v)
        return y if q.shape[2] <= 7 else 0.5 * y


class FixedTokens(Attention):
    """A bias of one size: other numbers of tokens are impossible."""

    def __init__(self, tokens: int = 16):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(tokens, tokens))

    def attend(self, q, k, v):
        affinity = torch.relu(q @ k.transpose(-2, -1) / q.shape[-1] + self.bias)
        return affinity / (affinity.flatten(-2).norm(dim=-1)[..., None, None] + 1e-6) @ v


class Softplus(Attention):
    def attend(self, q, k, v):
        affinity = F.softplus(q @ k.transpose(-2, -1))
        return affinity / affinity.sum((-2, -1), keepdim=True) @ v


class HonoursPadding(Attention):
    def forward(self, query, key=None, value=None, key_padding_mask=None, **k):
        y, w = super().forward(query, query, query)
        return (y if key_padding_mask is None else y * ~key_padding_mask[..., None]), w


class LayerScaled(Attention):
    def forward(self, *a, **k):
        y, w = super().forward(*a, **k)
        return 1e-3 * y, w


class ReturnsTensor(Attention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


class ReturnsDict(Attention):
    def forward(self, x):
        return {"tokens": super().forward(x, x, x)[0], "name": "attention"}


class ReturnsMore(Attention):
    def forward(self, x):
        y = super().forward(x, x, x)[0]
        return y, y.mean(1)


class ReturnsNamed(Attention):
    def forward(self, query, key, value):
        return Attended(*super().forward(query, key, value))


class OddArguments(Attention):
    def forward(self, value, query):
        return super().forward(query, query, value)[0]


class WithCore(Attention):
    def core(self, x):
        return super().forward(x, x, x)[0]


class HalfInside(Attention):
    def attend(self, q, k, v):
        return super().attend(q.half().to(q.dtype), k, v)


class FloatInside(Attention):
    def attend(self, q, k, v):
        return super().attend(q.float(), k.float(), v.float()).to(v.dtype)


class KeepsMap(Attention):
    def attend(self, q, k, v):
        self.last_norm = float(self.q_proj.weight.norm())
        return super().attend(q, k, v) * (1.0 if self.last_norm > 0 else 2.0)


class WideHeads(Attention):
    """Heads wider than their share of the embedding."""

    def __init__(self):
        super().__init__("linear_infsa")
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(E, 2 * E) for _ in range(3))
        self.out_proj = nn.Linear(2 * E, E)


class SharedKeys(Attention):
    """One head of keys and values for all: other shapes than the form has."""

    def __init__(self):
        super().__init__()
        self.k_proj, self.v_proj = nn.Linear(E, E // H), nn.Linear(E, E // H)

    def forward(self, query, key=None, value=None, **kwargs):
        q = self.heads(self.q_proj, query)
        k, v = self.k_proj(query).unsqueeze(1), self.v_proj(query).unsqueeze(1)
        return self.out_proj(self.attend(q, k, v).transpose(1, 2).flatten(2)), None


class LowRank(nn.Module):
    """A projection with an unmerged low-rank update beside it."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(E, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        self.in_features, self.weight = base.in_features, base.weight
        nn.init.normal_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Bent(nn.Linear):
    """A projection that is not affine."""

    def forward(self, x):
        return torch.tanh(super().forward(x))
