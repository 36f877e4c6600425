"""Python numbers that a module takes out of its own weights, such as `torch.sigmoid(self.rho_logit).item()`.

A tracer cannot follow a value out of a tensor. Where the tensor depends on nothing but parameters and buffers the
number is a constant of the model: it is noted in an eager run and handed to the tracer instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Taken = tuple[tuple[str, ...], Any]  # names of the modules that were running, and the number

TAKES_NUMBER = frozenset(
    (Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__)
)


class NotingScalars(TorchFunctionMode):
    """Within it, numbers taken out of tensors are noted in order in `scalars`: None where one is not constant.

    Only what is known to depend on weights alone counts as constant; anything of unknown origin does not. Beside each
    number stands what `active` held then: the names of the modules that were running.
    """

    def __init__(self, module: nn.Module, active: Sequence[str] = ()) -> None:
        super().__init__()
        self.scalars: list[Taken] = []
        self._active = active
        tensors = [*module.parameters(), *module.buffers()]
        self._constant = {id(tensor): tensor for tensor in tensors}  # holds them, so that no id is used twice

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        constant = all(id(tensor) in self._constant for tensor in tensors)
        if function in TAKES_NUMBER:
            self.scalars.append((tuple(self._active), result if constant else None))
        elif constant and not _is_random(function):
            self._constant |= {id(leaf): leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)}
        elif tensors and not constant and _writes(function):
            self._constant.pop(id(tensors[0]), None)
        return result


class HandingScalars(TorchFunctionMode):
    """Within it, the numbers noted in one run of a module are handed out again, run after run."""

    def __init__(self, scalars: Sequence[Any]) -> None:
        super().__init__()
        self._scalars, self._next = scalars, 0

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in TAKES_NUMBER and self._scalars:
            scalar = self._scalars[self._next % len(self._scalars)]
            self._next += 1
            if scalar is not None:
                return scalar
        return function(*args, **(kwargs or {}))


def agreed(*runs: Sequence[Taken]) -> list[Taken]:
    """What all runs took out alike; None where they differ, and nothing where they took out others."""
    places = [[active for active, _ in run] for run in runs]
    if any(place != places[0] for place in places):
        return []
    values = zip(*([value for _, value in run] for run in runs), strict=True)
    alike = [first if all(_same(first, other) for other in others) else None for first, *others in values]
    return list(zip(places[0], alike, strict=True))


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _is_random(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return "rand" in name or "dropout" in name or name in ("normal_", "uniform_", "bernoulli", "multinomial", "empty")


def _writes(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
