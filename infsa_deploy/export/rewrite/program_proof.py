"""Proof, in float64, that a traced program computes what the user's own module computes, batch sizes included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from infsa_deploy.export.rewrite.agreement import FLOAT32_TOLERANCE, difference
from infsa_deploy.export.rewrite.equivalence import Observed, tolerance
from infsa_deploy.export.trace import Program

CASTS = (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype_layout)
WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER)


def program_difference(program: Program, seen: Observed, wide: nn.Module) -> str:
    """Say how the traced program differs from the module observed, on the inputs of all its runs; empty where not.

    Args:
        program: what was traced from the float32 form of `wide`.
        seen: the user's module in float64, or in float32 where it runs in nothing else: then the program does, too.
        wide: the form that was traced, in float64: its weights go into the program, so that rounding is no excuse.
    """
    state: Mapping[str, Tensor] = {}
    if seen.module is seen.wide:
        named = (wide.named_parameters(remove_duplicate=False), wide.named_buffers(remove_duplicate=False))
        state = {name: tensor for tensors in named for name, tensor in tensors}
    why = _difference(program, state, seen, False, tolerance(seen))
    if not why or not state:
        return why
    # A type that forward itself names stays float32 in the module, and what follows is as exact as that.
    allowed = FLOAT32_TOLERANCE if _casts(program) else tolerance(seen)
    return why if _difference(program, state, seen, True, allowed) else ""


def _casts(program: Program) -> bool:
    """Whether the module's own code takes tensors to float32."""
    nodes = program.exported.graph.nodes
    return any(node.target in CASTS and torch.float32 in (*node.args, *node.kwargs.values()) for node in nodes)


def _difference(program: Program, state: Mapping[str, Tensor], seen: Observed, types_too: bool, allowed: float) -> str:
    for inputs, expected in zip(seen.inputs, seen.outputs, strict=True):
        try:
            found = _run(program, state, inputs, types_too)
        except Exception as error:  # types that do not go together, sizes that were not left free
            return f"it fails at a batch of {len(inputs[0])}: {type(error).__name__}: {error}".splitlines()[0]
        for name, wanted in expected.items():
            why = difference(wanted, found.get(name), allowed)
            if why:
                return f"output {name}, batch {len(inputs[0])}: {why}"
    return ""


def _run(program: Program, state: Mapping[str, Tensor], inputs: Sequence[Tensor], types_too: bool) -> dict[str, Tensor]:
    """Run the program node by node, with the weights of `state` where it has them; outputs by name."""
    exported, given = program.exported, iter(inputs)
    arguments: list[Any] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            arguments.append(next(given))
            continue
        assert spec.target is not None
        known = {**exported.constants, **exported.state_dict}[spec.target]
        arguments.append(state.get(spec.target, known) if spec.kind in WEIGHTS else known)
    with torch.no_grad():
        results = _InFloat64(exported.graph_module, types_too and bool(state)).run(*arguments)
    specs = exported.graph_signature.output_specs
    users = (value for value, spec in zip(results, specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT)
    return dict(zip(program.outputs, users, strict=False))


class _InFloat64(torch.fx.Interpreter):
    """Runs a graph; with `types_too` what says float32 in it means float64."""

    def __init__(self, module: torch.fx.GraphModule, types_too: bool) -> None:
        super().__init__(module)
        self._types_too = types_too

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten._assert_tensor_metadata.default:  # of the types that were traced
            return None
        if self._types_too:
            args, kwargs = pytree.tree_map(_wide, args), pytree.tree_map(_wide, kwargs)
        return super().call_function(target, args, kwargs)


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value
