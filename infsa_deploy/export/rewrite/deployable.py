"""Putting forms into attention that attribute names propose.

Whether a form computes what the module does is decided in `equivalence`; here it is only built. A form takes the place
of the module's `forward`: hooks, attributes and methods of the module stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from infsa_models.attention import InfSAAttention
from infsa_models.vit import Block
from torch import Tensor, nn

from infsa_deploy.errors import ModelError
from infsa_deploy.export.rewrite.agreement import difference
from infsa_deploy.export.rewrite.calls import Call, Convention
from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.rewrite.forms import (
    DEPTH_OF,
    PROJECTIONS,
    FoldedLinearAttention,
    PackedPureAttention,
    ReferenceCore,
    variant_of,
)

TOKENS = 5  # of the comparison of a reference formula with the original
FORM = "deployable_form"  # name of the submodule that a rewritten attention gets


class Adapter(nn.Module):
    """Gives a form the calling convention of the module whose `forward` it replaces.

    With `narrow` a linear form returns its one vector as [B, 1, E], for a caller that only adds it to the tokens.
    """

    def __init__(self, core: nn.Module, convention: Convention, *, narrow: bool) -> None:
        super().__init__()
        self.core, self.convention, self.narrow = core, convention, narrow

    def forward(self, *arguments: Any, **named: Any) -> Any:
        q, k, v = self.convention.sources(arguments, named)
        y = self.core(q, k, v)
        if y.shape[1] != q.shape[1] and not self.narrow:
            y = y.expand(-1, q.shape[1], -1)
        return self.convention.result(y)

    def attention_map(self, *arguments: Any, **named: Any) -> Tensor:
        """The map [B, H, N] of a call of the module."""
        q, k, _ = self.convention.sources(arguments, named)
        shares: Tensor = self.core.attention_map(q, k)  # type: ignore[operator]
        return shares


def is_infsa_attention(module: nn.Module) -> bool:
    """True for a module with the attributes of the authors' InfSAAttention: one to propose a form for, no more."""
    return all(hasattr(module, name) for name in (*PROJECTIONS, "rho_logit", "num_heads", "variant"))


def infsa_attentions(module: nn.Module) -> dict[str, nn.Module]:
    """Every InfSA attention inside `module`, by qualified name; one that stands in several places by the first."""
    return {name: child for name, child in module.named_modules() if is_infsa_attention(child)}


def form_of(attention: nn.Module) -> nn.Module:
    """The deployable form proposed for `attention`; ModelError where none can be built."""
    return PackedPureAttention(attention) if variant_of(attention) == "pure" else FoldedLinearAttention(attention)


def put_form(attention: nn.Module, convention: Convention, *, narrow: bool = False) -> None:
    """Replace the `forward` of `attention` by its deployable form, in place; ModelError where none can be built."""
    adapter = Adapter(form_of(attention), convention, narrow=narrow).train(attention.training)
    attention.add_module(FORM, adapter)
    attention.forward = adapter.forward
    attention.attention_map = adapter.attention_map  # type: ignore[assignment]


@contextmanager
def form_in_place(attention: nn.Module, convention: Convention, *, narrow: bool = False) -> Iterator[None]:
    """Within it, `attention` has its deployable form, see put_form."""
    own, form = vars(attention).copy(), attention._modules.get(FORM)
    put_form(attention, convention, narrow=narrow)
    try:
        yield
    finally:
        del attention._modules[FORM]
        if form is not None:
            attention._modules[FORM] = form
        for name in ("forward", "attention_map"):
            _restore(attention, name, own.get(name))


def _restore(attention: nn.Module, name: str, own: Any) -> None:
    """Give `attention` back the method of its own that it had, or that of its class for None."""
    vars(attention).pop(name, None)
    if own is not None:
        vars(attention)[name] = own


def rewritten(attention: nn.Module) -> Adapter | None:
    """What replaces the `forward` of `attention`, or None."""
    form = attention._modules.get(FORM)
    return form if isinstance(form, Adapter) else None


def to_deployable(module: nn.Module) -> nn.Module:
    """Copy `module` with each InfSA attention on custom ops, without proof: for models known to hold ours.

    Raises:
        ModelError: an attention has no deployable form.
    """
    copy = copied(module).eval()
    callers = {id(child): caller for caller in copy.modules() for child in caller.children()}
    for attention in infsa_attentions(copy).values():
        narrow = isinstance(callers.get(id(attention)), Block) and isinstance(attention, InfSAAttention)
        put_form(attention, Convention.usual(attention), narrow=narrow)
    return copy


def observed(attention: nn.Module, name: str, calls: list[Call], active: list[str]) -> Callable[[], None]:
    """Note each call of the `forward` of `attention` in `calls`, from here on; returns what ends it.

    While it runs, `active` has its name.
    """
    original, own = attention.forward, vars(attention).get("forward")

    def noting(*arguments: Any, **named: Any) -> Any:
        active.append(name)
        try:
            result = original(*arguments, **named)
        finally:
            active.pop()
        calls.append(Call(arguments, named, result))
        return result

    attention.forward = noting
    return lambda: _restore(attention, "forward", own)


def to_reference(module: nn.Module) -> nn.Module:
    """Copy `module` with each InfSA attention that is not ours computed by our reference formula.

    Raises:
        ModelError: an attention computes something else.
    """
    copy = copied(module).eval()
    for name, attention in infsa_attentions(copy).items():
        form = rewritten(attention)
        known = isinstance(attention, InfSAAttention) or (form and isinstance(form.core, ReferenceCore))
        if not known:
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
                setattr(_core(attention), DEPTH_OF[variant_of(attention)], depth[variant_of(attention)])
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
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(attention.forward).parameters.values() if p.kind in kinds]
    return 3 if {"key", "value"} & set(names) or len(names) >= 3 else 1
