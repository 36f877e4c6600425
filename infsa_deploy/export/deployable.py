"""Swapping reference attention for its deployable form on the custom ops.

linear: the key, value and output projections are folded onto pooled tokens, so that one N x E x E product is left.
pure: one packed qkv product, then NeumannAttention. softmax is left as it is. Both are exact rewrites.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from infsa_models.attention import EPS, InfSAAttention, hops_for_tolerance
from infsa_models.vit import Block
from torch import Tensor, nn
from torch.nn import functional as F

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import centrality_pool, energy_pool, neumann_attention

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
DEPTH_OF = {"pure": "hops", "linear": "power_iterations"}  # variant: what its series is as deep as


class FoldedLinearAttention(nn.Module):
    """Linear InfSA with everything but the query projection applied to pooled tokens.

    The output is one vector a sample, added to every token by the caller's residual: x [B, N, E] -> y [B, 1, E]
    when `broadcast` is False, else [B, N, E].
    """

    q_proj: nn.Linear
    out_proj: nn.Linear
    wq: Tensor
    wk: Tensor
    wv: Tensor
    bq: Tensor
    bk: Tensor
    bv: Tensor

    def __init__(self, attention: nn.Module, *, broadcast: bool = False) -> None:
        super().__init__()
        weights, biases = _projections(attention)
        E = weights["q_proj"].shape[1]
        self.heads, self.broadcast = int(attention.num_heads), broadcast  # type: ignore[arg-type]
        H, D = self.heads, weights["q_proj"].shape[0] // self.heads
        self.power_iterations = int(getattr(attention, "power_iterations", 1))
        rho = torch.sigmoid(attention.rho_logit.detach().double())  # type: ignore[operator]
        self.q_proj, self.out_proj = attention.q_proj, attention.out_proj  # type: ignore[assignment]
        wide = {name: weight.double() for name, weight in weights.items()}
        by_head = {name: wide[name].view(H, D, E) for name in ("q_proj", "k_proj", "v_proj")}
        dtype = weights["q_proj"].dtype

        def keep(name: str, value: Tensor) -> None:
            self.register_buffer(name, value.to(dtype).contiguous())

        keep("wq", by_head["q_proj"].transpose(1, 2))  # H E D
        keep("wk", by_head["k_proj"] / D)  # H D E; both 1/sqrt(D) of q and k land here
        keep("wv", by_head["v_proj"].transpose(1, 2) * rho)  # H E D
        keep("bq", biases["q_proj"].double().view(H, 1, D))
        keep("bk", biases["k_proj"].double().view(H, D, 1) / D)
        keep("bv", biases["v_proj"].double().view(H, 1, D) * rho)

    def forward(self, x: Tensor) -> Tensor:
        B, N, E = x.shape
        pooled, mass, _ = self._pool(x)
        value = self._project(pooled, mass, self.wv, self.bv)  # H B D
        y: Tensor = self.out_proj(value.transpose(0, 1).reshape(B, 1, -1))  # B 1 E
        return y.expand(B, N, E) if self.broadcast else y

    def attention_map(self, x: Tensor) -> Tensor:
        """The centrality of each token, [B, N, E] -> [B, H, N]: nothing but another output of the last pooling."""
        return self._pool(x)[2]

    def _pool(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pool the tokens by centrality: [B, N, E] -> pooled [B, H, E], mass [B, H], centrality [B, H, N]."""
        pooled, mass = energy_pool.OP.torch_op(self.q_proj(x), x, self.heads, EPS)
        for _ in range(self.power_iterations):
            q_bar = self._project(pooled, mass, self.wq, self.bq)  # H B D
            u = (q_bar @ self.wk).transpose(0, 1)  # B H E
            c = (q_bar @ self.bk).squeeze(-1).transpose(0, 1)  # B H
            pooled, mass, centrality = centrality_pool.OP.torch_op(x, u, c, EPS)
        return pooled, mass, centrality

    @staticmethod
    def _project(pooled: Tensor, mass: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Project a pooled token a head; the bias weighs as much as the tokens did: [B H E] -> [H B D]."""
        projected: Tensor = pooled.transpose(0, 1) @ weight + mass.transpose(0, 1).unsqueeze(-1) * bias
        return projected


class PackedPureAttention(nn.Module):
    """Pure InfSA with one qkv product: x [B, N, E] -> y [B, N, E]."""

    qkv_weight: Tensor
    qkv_bias: Tensor
    out_proj: nn.Linear

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        weights, biases = _projections(attention)
        packed = ("q_proj", "k_proj", "v_proj")
        self.register_buffer("qkv_weight", torch.cat([weights[name] for name in packed]))
        self.register_buffer("qkv_bias", torch.cat([biases[name] for name in packed]))
        self.out_proj = attention.out_proj  # type: ignore[assignment]
        self.heads = int(attention.num_heads)  # type: ignore[arg-type]
        self.rho = float(torch.sigmoid(attention.rho_logit.detach().double()))  # type: ignore[operator]
        hops = getattr(attention, "hops", 1)
        self.hops = hops_for_tolerance(self.rho) if hops == "inf" else int(hops)

    def forward(self, x: Tensor) -> Tensor:
        qkv = F.linear(x, self.qkv_weight, self.qkv_bias)  # B N 3HD
        y: Tensor = self.out_proj(neumann_attention.OP.torch_op(qkv, self.heads, self.rho, self.hops, EPS))
        return y

    def attention_map(self, x: Tensor) -> Tensor:
        """The column sums of the series, scaled to sum to 1: [B, N, E] -> [B, H, N].

        Exchanging q and k transposes the affinity, and values of 1 sum its rows: a second call of the same op, as
        large as the first, and no N x N matrix. All D columns of a head's result are alike.
        """
        q, k, v = F.linear(x, self.qkv_weight, self.qkv_bias).chunk(3, dim=-1)
        exchanged = torch.cat([k, q, torch.ones_like(v)], dim=-1)
        sums = neumann_attention.OP.torch_op(exchanged, self.heads, self.rho, self.hops, EPS)
        given = sums.unflatten(-1, (self.heads, -1))[..., 0].transpose(1, 2)  # B H N
        shares: Tensor = given / (given.sum(dim=-1, keepdim=True) + EPS)
        return shares


class SelfAttentionAdapter(nn.Module):
    """Gives attention on x [B, N, E] the calling convention of `nn.MultiheadAttention`."""

    def __init__(self, core: nn.Module, batch_first: bool) -> None:
        super().__init__()
        self.core, self.batch_first = core, batch_first

    def forward(
        self,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        need_weights: bool = False,
        hidden_states: Tensor | None = None,
        **masks: Any,
    ) -> tuple[Tensor, None]:
        x = hidden_states if query is None else query
        if x is None or any(other is not None and other is not x for other in (key, value)):
            raise ModelError(
                "the attention is called with key or value other than the query.",
                "InfSA is exported as self-attention.",
                "call attention(x, x, x).",
            )
        if need_weights or any(mask is not None for name, mask in masks.items() if "mask" in name):
            raise ModelError(
                "the attention is called with a mask or need_weights=True.",
                "the deployable form has no attention matrix to mask or return.",
                "call attention(x, x, x, need_weights=False).",
            )
        y = self.core(x if self.batch_first else x.transpose(0, 1))
        return (y if self.batch_first else y.transpose(0, 1)), None


def is_infsa_attention(module: nn.Module) -> bool:
    """True for a module shaped like the authors' InfSAAttention, whoever wrote its class."""
    return all(hasattr(module, name) for name in (*PROJECTIONS, "rho_logit", "num_heads", "variant"))


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


def infsa_attentions(module: nn.Module) -> dict[str, nn.Module]:
    """Every InfSA attention inside `module`, by qualified name; one that stands in several places has several."""
    named = module.named_modules(remove_duplicate=False)
    return {name: child for name, child in named if is_infsa_attention(child)}


def to_deployable(module: nn.Module) -> nn.Module:
    """Copy `module` with each InfSA attention on custom ops; rho is frozen into the copy."""
    return _with_attention(module, _deployable)


def to_reference(module: nn.Module) -> nn.Module:
    """Copy `module` with each foreign InfSA attention replaced by our reference formula, which traces."""
    return _with_attention(module, _reference)


def _with_attention(module: nn.Module, replacement: Callable[[nn.Module, nn.Module], nn.Module]) -> nn.Module:
    copied = copy.deepcopy(module).eval()
    for name, attention in infsa_attentions(copied).items():
        if not name:
            return replacement(attention, copied)
        parent, _, attribute = name.rpartition(".")
        user = copied.get_submodule(parent)
        setattr(user, attribute, replacement(attention, user))
    return copied


def _deployable(attention: nn.Module, user: nn.Module) -> nn.Module:
    if variant_of(attention) == "pure":
        core: nn.Module = PackedPureAttention(attention)
    else:  # of our own block it is known that it only adds the result to the tokens
        core = FoldedLinearAttention(attention, broadcast=not isinstance(user, Block))
    if isinstance(attention, InfSAAttention):
        return core
    return SelfAttentionAdapter(core, bool(getattr(attention, "batch_first", True)))


def _reference(attention: nn.Module, user: nn.Module) -> nn.Module:
    if isinstance(attention, InfSAAttention):
        return attention
    weights, biases = _projections(attention)
    E, variant = weights["q_proj"].shape[0], variant_of(attention)
    depth = {DEPTH_OF[variant]: getattr(attention, DEPTH_OF[variant], 1)}
    core = InfSAAttention(E, int(attention.num_heads), variant, **depth)  # type: ignore[arg-type]
    state = {f"{name}.weight": weight for name, weight in weights.items()}
    state |= {f"{name}.bias": bias for name, bias in biases.items()}
    core.load_state_dict(state | {"rho_logit": attention.rho_logit.detach()})  # type: ignore[operator]
    core.to(weights["q_proj"].dtype)
    return SelfAttentionAdapter(core.eval(), bool(getattr(attention, "batch_first", True)))


def _projections(attention: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights [out, in] and biases [out] by projection name; a missing bias is zeros."""
    layers = {name: getattr(attention, name) for name in PROJECTIONS}
    weights = {name: layer.weight.detach() for name, layer in layers.items()}
    E = weights["out_proj"].shape[0]
    odd = [name for name, weight in weights.items() if tuple(weight.shape) != (E, E)]
    if odd:
        raise ModelError(
            f"attention projections {', '.join(odd)} are not {E} x {E}.",
            "InfSA is exported as self-attention of one width.",
            "export a module whose q, k, v and out projections are square.",
        )
    zeros = torch.zeros_like(weights["q_proj"][:, 0])
    biases = {name: zeros if layer.bias is None else layer.bias.detach() for name, layer in layers.items()}
    return weights, biases
