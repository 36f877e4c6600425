"""What a model's inputs and outputs are called: the one rule, for any module.

Inputs are named after the parameters of `forward`. Outputs are flattened depth first. A single tensor is `logits`; a
mapping (a dict, a Hugging Face `ModelOutput`), a named tuple or a dataclass gives its keys; a tuple or list gives
`output_0`, `output_1`, ...; nested names are joined by "."; None is dropped. A module's `output_names` stand over it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from infsa_deploy.errors import ModelError, UsageError

SINGLE_OUTPUT = "logits"


def input_names(module: nn.Module, count: int) -> tuple[str, ...]:
    """Name the first `count` inputs of `module` after the parameters of its `forward`; `*args` gives `args_0`, ...

    Raises:
        UsageError: `forward` takes fewer inputs, or needs more.
    """
    parameters = list(inspect.signature(module.forward).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in positional]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    if variadic is not None:
        names += [f"{variadic}_{index}" for index in range(count - len(names))]
    needed = [p.name for p in positional if p.default is p.empty]
    if count > len(names) or count < len(needed):
        raise UsageError(
            f"{type(module).__name__} takes {', '.join(needed if count < len(needed) else names) or 'no input'}.",
            f"{count} example input{'s were' if count != 1 else ' was'} given.",
            "give one tensor for each parameter of forward, in order.",
        )
    return tuple(names[:count])


def flatten_outputs(outputs: Any, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Flatten what a module returned into tensors by name, in order.

    Args:
        outputs: what `forward` returned.
        names: the module's own `output_names`, which replace those of the rule.

    Raises:
        ModelError: there is no tensor, something that is none, two of one name, or `names` are too many or too few.
    """
    found: dict[str, Tensor] = {}
    for path, tensor in _leaves(outputs, ""):
        name = path or SINGLE_OUTPUT
        if not isinstance(tensor, Tensor):
            raise ModelError(
                f"the output {name} is a {type(tensor).__name__}.",
                "a model is exported with tensors as its outputs.",
                "wrap the model so that forward returns tensors, or a dict, tuple or list of them.",
            )
        if name in found:
            raise ModelError(f"two outputs are named {name}.", "names are joined by dots.", "rename a key.")
        found[name] = tensor
    if not found:
        raise ModelError("the model returns no tensor.", "", "wrap it so that forward returns what you need.")
    return found if names is None else _renamed(found, names)


def module_outputs(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run `module` without gradients and flatten what it returns, under its own `output_names` if it has any."""
    with torch.no_grad():
        return flatten_outputs(module(*inputs), own_output_names(module))


def own_output_names(module: nn.Module) -> tuple[str, ...] | None:
    """The names that the module gives to its outputs itself, or None."""
    names = getattr(module, "output_names", None)
    listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if listed and names else None


def class_count(outputs: Mapping[str, Tensor]) -> int | None:
    """How many classes the output `logits` [B, K] tells apart; None where there is no such output."""
    logits = outputs.get(SINGLE_OUTPUT)
    return logits.shape[1] if logits is not None and logits.ndim == 2 else None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    items = _items(value)
    if items is None:
        if value is not None:
            yield path, value
        return
    for name, item in items:
        yield from _leaves(item, f"{path}.{name}" if path else name)


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by name; None for anything else."""
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return [(f"output_{index}", item) for index, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _renamed(found: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    if len(names) != len(found) or len(set(names)) != len(names):
        raise ModelError(
            f"output_names are {', '.join(names)}.",
            f"the model returns {len(found)} tensors: {', '.join(found)}.",
            "name each once.",
        )
    return dict(zip(names, found.values(), strict=True))
