"""Calls of an attention: which arguments are queries, keys and values, and what the result looks like."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from infsa_deploy.errors import ModelError

PLACES = {"query": 0, "q": 0, "key": 1, "k": 1, "value": 2, "v": 2}


@dataclass(frozen=True)
class Call:
    """One call that was seen: positional and named arguments, and what was returned."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    result: Any


@dataclass(frozen=True)
class Convention:
    """How an attention is called and what it returns.

    Attributes:
        signature: parameters of its `forward`.
        batch_first: tokens are [B, N, E]; else [N, B, E].
        key_is_query, value_is_key: the two were equal in every call seen.
        layout: structure of the result.
        rest: leaves of the result; the one at `place` is the tensor.
    """

    signature: inspect.Signature
    batch_first: bool
    key_is_query: bool
    value_is_key: bool
    layout: Any
    rest: tuple[Any, ...]
    place: int

    def __deepcopy__(self, known: dict[int, Any]) -> Convention:
        return self  # nothing in it changes

    @classmethod
    def seen(cls, attention: nn.Module, calls: Sequence[Call]) -> Convention:
        """Read the convention off the calls; ModelError for calls that no form of attention fits."""
        leaves, layout = pytree.tree_flatten(calls[0].result)
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if len(places) != 1:
            raise ModelError(f"it returns {len(places)} tensors")
        rest = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        signature = inspect.signature(attention.forward)
        found = [sources_of(signature, call.arguments, call.named) for call in calls]
        return cls(
            signature,
            bool(getattr(attention, "batch_first", True)),
            all(_equal(q, k) for q, k, _ in found),
            all(_equal(k, v) for _, k, v in found),
            layout,
            rest,
            places[0],
        )

    @classmethod
    def usual(cls, attention: nn.Module) -> Convention:
        """The convention where no call was seen: x -> y for one parameter, else as nn.MultiheadAttention."""
        signature = inspect.signature(attention.forward)
        single = len(signature.parameters) == 1
        leaves, layout = pytree.tree_flatten(None if single else (None, None))
        return cls(signature, bool(getattr(attention, "batch_first", True)), True, True, layout, tuple(leaves), 0)

    def sources(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, N, E] of a call; those that are equal are one tensor."""
        q, k, v = sources_of(self.signature, arguments, named)
        if not self.batch_first:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        if self.key_is_query:
            k = q
        return q, k, k if self.value_is_key else v

    def result(self, y: Tensor) -> Any:
        """What the attention returns for the output y [B, N, E]."""
        leaves = list(self.rest)
        leaves[self.place] = y if self.batch_first else y.transpose(0, 1)
        return pytree.tree_unflatten(leaves, self.layout)


def sources_of(
    signature: inspect.Signature, arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values among the arguments of a call; ModelError where there are none.

    They are the floating tensors of three axes that are no masks, in the order of their names or, without such names,
    of the call. One stands for all three; of two, the second is keys and values.
    """
    found: list[tuple[int, Tensor]] = []
    for name, value in _by_name(signature, arguments, named):
        fits = isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()
        if fits and "mask" not in name and "bias" not in name:
            found.append((PLACES.get(name, len(found)), value))
    if not 1 <= len(found) <= 3:
        raise ModelError(f"it is called with {len(found)} token sequences")
    tensors = [value for _, value in sorted(found, key=lambda pair: pair[0])]
    return tensors[0], tensors[min(1, len(tensors) - 1)], tensors[-1]


def _by_name(signature: inspect.Signature, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    try:
        bound = signature.bind(*arguments, **named).arguments
    except TypeError as error:
        raise ModelError(f"its arguments do not fit its forward: {error}") from error
    flat: list[tuple[str, Any]] = []
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            flat += [(name, item) for item in value]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            flat += list(value.items())
        else:
            flat.append((name, value))
    return flat


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and torch.equal(a, b))
