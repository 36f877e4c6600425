"""Copying a module so that nothing of the copy leads back to the original."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor, nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def copied(module: nn.Module) -> nn.Module:
    """Copy `module` deeply, functions that were put into it included.

    `copy.deepcopy` leaves functions alone: a hook, or a `forward` assigned to an instance, that closes over a part of
    the model would go on using the original's weights.
    """
    known: dict[int, Any] = {}
    made = copy.deepcopy(module, known)
    for holder in _holders(made):
        for name, value in list(holder.items()):
            if isinstance(value, types.FunctionType) and value.__closure__:
                holder[name] = _rebound(value, known)
    return made


def _holders(module: nn.Module) -> Iterator[MutableMapping[Any, Any]]:
    """Where functions of a module and its submodules lie: their own attributes and their hooks."""
    for child in module.modules():
        yield vars(child)
        for name in HOOKS:
            yield getattr(child, name)


def _rebound(function: types.FunctionType, known: dict[int, Any]) -> types.FunctionType:
    """`function` with the modules and tensors that it closes over exchanged for their copies."""
    cells = [types.CellType(_copy_of(cell.cell_contents, known)) for cell in function.__closure__ or ()]
    if all(new.cell_contents is old.cell_contents for new, old in zip(cells, function.__closure__ or (), strict=True)):
        return function
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _copy_of(value: Any, known: dict[int, Any]) -> Any:
    if isinstance(value, nn.Module | Tensor):
        return known.get(id(value), value)
    if isinstance(value, types.MethodType) and id(value.__self__) in known:
        return types.MethodType(value.__func__, known[id(value.__self__)])
    if isinstance(value, types.FunctionType) and value.__closure__:
        return _rebound(value, known)
    return value
