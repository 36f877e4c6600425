"""The reference formula in the place of attention that is not ours: for a depth of series that it does not know."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from infsa_models.attention import InfSAAttention
from torch import Tensor, nn

from infsa_deploy.errors import ModelError
from infsa_deploy.export.agreement import difference
from infsa_deploy.export.calls import Convention
from infsa_deploy.export.copying import copied
from infsa_deploy.export.deployable import DEPTH_OF, FORM, Adapter, infsa_attentions, plain_projections, variant_of

TOKENS = 5  # of the comparison with the original


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


def to_reference(module: nn.Module) -> nn.Module:
    """Copy `module` with each InfSA attention that is not ours computed by our reference formula.

    Raises:
        ModelError: an attention computes something else.
    """
    copy = copied(module).eval()
    for name, attention in infsa_attentions(copy).items():
        if not isinstance(attention, InfSAAttention):
            put_reference(attention, name)
    return copy


def with_series_depth(module: nn.Module, depth: Mapping[str, int | str]) -> nn.Module:
    """Copy `module` with as many `hops` or `power_iterations` in its attentions as `depth` says by variant.

    Raises:
        ModelError: an attention that is to be changed computes another formula than InfSA.
    """
    copy = copied(module).eval()
    for name, attention in infsa_attentions(copy).items():
        if variant_of(attention) in depth:
            if not isinstance(attention, InfSAAttention):
                put_reference(attention, name)
                _core(attention).__dict__[DEPTH_OF[variant_of(attention)]] = depth[variant_of(attention)]
            setattr(attention, DEPTH_OF[variant_of(attention)], depth[variant_of(attention)])
    return copy


def put_reference(attention: nn.Module, name: str) -> None:
    """Replace the `forward` of `attention` by the reference formula, in place.

    Raises:
        ModelError: the two differ in float64 on random tokens.
    """
    convention = Convention.usual(attention)
    adapter = Adapter(ReferenceCore(attention), convention, narrow=False).eval()
    why = _difference(attention, adapter)
    if why:
        raise ModelError(
            f"{name or type(attention).__name__} is not the InfSA attention that its attributes say.",
            f"on random tokens, {why}.",
            "leave out --hops, --power-iterations and --attention-maps: its own forward is exported as it is.",
        )
    attention.add_module(FORM, adapter)
    attention.forward = adapter.forward
    attention.attention_map = adapter.attention_map  # type: ignore[assignment]


def _core(attention: nn.Module) -> InfSAAttention:
    found = attention.get_submodule(f"{FORM}.core.core")
    assert isinstance(found, InfSAAttention)
    return found


def _difference(attention: nn.Module, adapter: nn.Module) -> str:
    wide, form = copied(attention).double(), copied(adapter).double()
    width = form.core.core.q_proj.in_features  # type: ignore[union-attr]
    tokens = torch.randn(2, TOKENS, int(width), dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    arguments = (tokens,) * min(3, max(1, _required(wide)))
    try:
        with torch.no_grad():
            return difference(wide(*arguments), form(*arguments))
    except Exception as error:  # another convention than the usual two
        return f"it fails: {type(error).__name__}: {error}".splitlines()[0]


def _required(attention: nn.Module) -> int:
    """How many of query, key and value the attention takes."""
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(attention.forward).parameters.values() if p.kind in kinds]
    return 3 if {"key", "value"} & set(names) or len(names) >= 3 else 1
