"""Forms of InfSA attention over its four projections: on the custom ops, and as the reference formula has it.

linear: the key, value and output projections are folded onto pooled tokens, so that one N x E x E product is left.
pure: one packed qkv product, then NeumannAttention.
"""

from __future__ import annotations

import torch
from infsa_models.attention import EPS, InfSAAttention, hops_for_tolerance
from torch import Tensor, nn
from torch.nn import functional as F

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import centrality_pool, energy_pool, neumann_attention

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
DEPTH_OF = {"pure": "hops", "linear": "power_iterations"}  # variant: what its series is as deep as


class FoldedLinearAttention(nn.Module):
    """Linear InfSA with everything but the query projection applied to pooled tokens.

    The output is one vector a sample: q, k, v [B, N, E], which may be one tensor, -> y [B, 1, E]. Keys and values of
    another length than the queries are possible where there is one power iteration.
    """

    wq: Tensor
    wk: Tensor
    wv: Tensor
    bq: Tensor
    bk: Tensor
    bv: Tensor

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.q_proj, k_proj, v_proj, self.out_proj = plain_projections(attention)
        self.heads = H = int(attention.num_heads)  # type: ignore[arg-type]
        self.eps = _eps(attention)
        self.power_iterations = int(getattr(attention, "power_iterations", 1))
        rho = torch.sigmoid(attention.rho_logit.detach().double())  # type: ignore[operator]
        dtype = self.q_proj.weight.dtype

        def keep(name: str, value: Tensor) -> None:
            self.register_buffer(name, value.to(dtype).contiguous())

        def split(layer: nn.Linear) -> tuple[Tensor, Tensor]:
            weight, bias = _wide(layer)
            return weight.view(H, -1, weight.shape[1]), bias.view(H, -1)  # H D E and H D

        (wq, bq), (wk, bk), (wv, bv) = split(self.q_proj), split(k_proj), split(v_proj)
        D = wq.shape[1]
        keep("wq", wq.transpose(1, 2))  # H E D
        keep("wk", wk / D)  # H D E; both 1/sqrt(D) of q and k land here
        keep("wv", wv.transpose(1, 2) * rho)  # H E D
        keep("bq", bq.unsqueeze(1))  # H 1 D
        keep("bk", bk.unsqueeze(2) / D)  # H D 1
        keep("bv", bv.unsqueeze(1) * rho)  # H 1 D

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pooled, mass, _ = self._pool(q, k, v)
        value = self._project(pooled, mass, self.wv, self.bv)  # H B D
        y: Tensor = self.out_proj(value.transpose(0, 1).reshape(q.shape[0], 1, -1))  # B 1 E
        return y

    def attention_map(self, q: Tensor, k: Tensor) -> Tensor:
        """The centrality of each token, [B, N, E] -> [B, H, N]: nothing but another output of the last pooling."""
        return self._pool(q, k, k)[2]

    def _pool(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pool v by the centrality of k: pooled [B, H, E], mass [B, H], centrality [B, H, N]."""
        pooled, mass = energy_pool.OP.torch_op(self.q_proj(q), q, self.heads, self.eps)
        for more in reversed(range(self.power_iterations)):
            q_bar = self._project(pooled, mass, self.wq, self.bq)  # H B D
            u = (q_bar @ self.wk).transpose(0, 1)  # B H E
            c = (q_bar @ self.bk).squeeze(-1).transpose(0, 1)  # B H
            pooled, mass, centrality = self._pool_by(k, u, c, q if more else v)
        return pooled, mass, centrality

    def _pool_by(self, k: Tensor, u: Tensor, c: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pool `values` by the scores of k; the op pools what it scores, so that other values stand beside k."""
        if values is k:
            return centrality_pool.OP.torch_op(k, u, c, self.eps)  # type: ignore[no-any-return]
        beside = torch.cat([u, u.new_zeros(1, 1, 1).expand(*u.shape[:2], values.shape[-1])], dim=-1)
        both = torch.cat([k, values], dim=-1)
        pooled, mass, centrality = centrality_pool.OP.torch_op(both, beside, c, self.eps)
        return pooled[..., k.shape[-1] :], mass, centrality

    @staticmethod
    def _project(pooled: Tensor, mass: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Project a pooled token a head; the bias weighs as much as the tokens did: [B H E] -> [H B D]."""
        projected: Tensor = pooled.transpose(0, 1) @ weight + mass.transpose(0, 1).unsqueeze(-1) * bias
        return projected


class PackedPureAttention(nn.Module):
    """Pure InfSA with one qkv product where q, k and v are one tensor: q, k, v [B, N, E] -> y [B, N, E]."""

    qkv_weight: Tensor
    qkv_bias: Tensor

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        *layers, self.out_proj = plain_projections(attention)
        weights = [layer.weight.detach() for layer in layers]
        biases = [_wide(layer)[1].to(weights[0].dtype) for layer in layers]
        if len({tuple(weight.shape) for weight in weights}) > 1:
            raise ModelError("the q, k and v projections differ in shape.")
        self.register_buffer("qkv_weight", torch.cat(weights))
        self.register_buffer("qkv_bias", torch.cat(biases))
        self.heads = int(attention.num_heads)  # type: ignore[arg-type]
        self.eps = _eps(attention)
        self.rho = float(torch.sigmoid(attention.rho_logit.detach().double()))  # type: ignore[operator]
        hops = getattr(attention, "hops", 1)
        self.hops = hops_for_tolerance(self.rho) if hops == "inf" else int(hops)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        qkv = self._packed(q, k, v)
        y: Tensor = self.out_proj(neumann_attention.OP.torch_op(qkv, self.heads, self.rho, self.hops, self.eps))
        return y

    def attention_map(self, q: Tensor, k: Tensor) -> Tensor:
        """The column sums of the series, scaled to sum to 1: [B, N, E] -> [B, H, N].

        Exchanging q and k transposes the affinity, and values of 1 sum its rows: a second call of the same op, as
        large as the first, and no N x N matrix. All D columns of a head's result are alike.
        """
        query, key, v = self._packed(q, k, k).chunk(3, dim=-1)
        exchanged = torch.cat([key, query, torch.ones_like(v)], dim=-1)
        sums = neumann_attention.OP.torch_op(exchanged, self.heads, self.rho, self.hops, self.eps)
        given = sums.unflatten(-1, (self.heads, -1))[..., 0].transpose(1, 2)  # B H N
        shares: Tensor = given / (given.sum(dim=-1, keepdim=True) + self.eps)
        return shares

    def _packed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q is k and k is v:
            return F.linear(q, self.qkv_weight, self.qkv_bias)  # B N 3HD
        A = self.qkv_weight.shape[0] // 3
        rows = (slice(index * A, (index + 1) * A) for index in range(3))
        parts = [F.linear(x, self.qkv_weight[at], self.qkv_bias[at]) for x, at in zip((q, k, v), rows, strict=True)]
        return torch.cat(parts, dim=-1)


class ReferenceCore(nn.Module):
    """Our reference attention with the weights of another's; q, k and v must be one tensor [B, N, E]."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        layers = plain_projections(attention)
        variant, width = variant_of(attention), layers[0].out_features
        if any((layer.in_features, layer.out_features) != (width, width) for layer in layers):
            raise ModelError(f"its projections are not all {width} x {width}")
        depth = {DEPTH_OF[variant]: getattr(attention, DEPTH_OF[variant], 1)}
        self.core = InfSAAttention(width, int(attention.num_heads), variant, **depth)  # type: ignore[arg-type]
        self.core.to(layers[0].weight.dtype)
        zeros = layers[0].weight.new_zeros(width)
        state = {"rho_logit": attention.rho_logit.detach()}  # type: ignore[operator]
        for name, layer in zip(("q_proj", "k_proj", "v_proj", "out_proj"), layers, strict=True):
            state |= {f"{name}.weight": layer.weight, f"{name}.bias": zeros if layer.bias is None else layer.bias}
        self.core.load_state_dict(state)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q is not k or k is not v:
            raise ModelError(
                "the attention is called with key or value other than the query.",
                "a series inside a layer is that of self-attention.",
                "leave out --hops and --power-iterations.",
            )
        y: Tensor = self.core(q)
        return y

    def attention_map(self, q: Tensor, k: Tensor) -> Tensor:
        return self.core.attention_map(q)


def variant_of(attention: nn.Module) -> str:
    """`linear` or `pure`, from either naming; ModelError for anything else."""
    variant = str(attention.variant).removesuffix("_infsa")
    if variant not in ("linear", "pure"):
        raise ModelError(
            f"attention variant {attention.variant!r} is unknown.",
            "the variants are linear and pure (also linear_infsa, pure_infsa).",
            "set `variant` on the attention module.",
        )
    return variant


def _eps(attention: nn.Module) -> float:
    eps = getattr(attention, "eps", EPS)
    return float(eps) if isinstance(eps, float) else EPS


def plain_projections(attention: nn.Module) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """The four projections as plain layers; ModelError unless their shapes fit together."""
    q, k, v, out = (_plain(getattr(attention, name)) for name in PROJECTIONS)
    inner = {q.out_features, k.out_features, v.out_features, out.in_features}
    if len(inner) > 1 or q.out_features % int(attention.num_heads):  # type: ignore[arg-type]
        raise ModelError(
            f"the attention projections do not fit together: {sorted(inner)}.",
            "InfSA has one width and one number of heads for queries, keys and values.",
            "export a module whose q, k, v and out projections agree.",
        )
    return q, k, v, out


def _plain(layer: nn.Module) -> nn.Linear:
    """`layer` itself if it is no more than nn.Linear, else the affine map that it is: LoRA, parametrisations, hooks.

    The map is read off zeros and unit vectors; a layer that is not affine gives a form that fails its comparison.
    """
    hooks = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    if type(layer) is nn.Linear and not hooks:
        return layer
    weight: Tensor = layer.weight  # type: ignore[assignment]
    width = int(getattr(layer, "in_features", weight.shape[-1]))
    with torch.no_grad():
        unit = torch.eye(width, dtype=weight.dtype, device=weight.device)
        images = layer(torch.cat([unit.new_zeros(1, width), unit]).unsqueeze(0))[0]
        plain = nn.Linear(width, images.shape[-1], dtype=weight.dtype, device=weight.device)
        plain.weight.copy_((images[1:] - images[:1]).T)
        plain.bias.copy_(images[0])
    return plain


def _wide(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight [out, in] and bias [out] in float64; a missing bias is zeros."""
    weight = layer.weight.detach().double()
    return weight, weight.new_zeros(weight.shape[0]) if layer.bias is None else layer.bias.detach().double()
