"""Proof, in float64, that attention on the custom ops computes what the user's own module computes.

1. The user's module runs in float64 on random inputs of two batch sizes; each call of each attention is noted.
2. The form proposed for an attention takes the place of its `forward` and gets the calls again, cut to few tokens, and
   random tokens at several scales. Where it agrees with the original it stays, else the original does.
3. What calls a form that returns one vector for all tokens is compared in the same way.
4. The whole traced program is compared with the user's module, in `program`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from infsa_models.attention import InfSAAttention, hops_for_tolerance
from infsa_models.vit import Block
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from infsa_deploy.errors import ModelError
from infsa_deploy.export import frozen_scalars
from infsa_deploy.export.interface import flatten_outputs, own_output_names
from infsa_deploy.export.rewrite.agreement import FLOAT32_TOLERANCE, TOLERANCE, difference, largest
from infsa_deploy.export.rewrite.calls import Call, Convention
from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.rewrite.deployable import form_in_place, infsa_attentions, observed, put_form
from infsa_deploy.export.rewrite.probes import probe

SCALES = (1.0, 30.0, 0.03)  # of random tokens: what clamps or saturates shows at one of them
FEW = 7  # tokens and samples that a call is cut to
CALLS = 4  # calls of one attention that are compared


@dataclass(frozen=True)
class Form:
    """How one attention is rewritten: the convention of its calls, and whether it returns one vector."""

    convention: Convention
    narrow: bool = False


@dataclass
class Observed:
    """What the user's module did in float64.

    Attributes:
        module: it, in float64, or in float32 where it does not run in float64; never rewritten.
        wide: it in float64.
        inputs: inputs of each run.
        outputs: outputs by name of each run.
        calls: calls of each attention and of each of our blocks, by qualified name.
        scalars: see frozen_scalars.
        structured: whether it returns anything but a tensor or a tuple of tensors.
    """

    module: nn.Module
    wide: nn.Module
    inputs: list[tuple[Tensor, ...]] = field(default_factory=list)
    outputs: list[dict[str, Tensor]] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    scalars: list[frozen_scalars.Taken] = field(default_factory=list)
    structured: bool = False


@dataclass(frozen=True)
class Plan:
    """Which attentions are rewritten, by name, and why others are kept."""

    forms: Mapping[str, Form]
    kept: Mapping[str, str]


def widened(module: nn.Module) -> nn.Module:
    """A copy of `module` in eval mode and float64; a whole Neumann series is cut where a form of it cuts it."""
    wide = copied(module).eval().double()
    for attention in wide.modules():
        if isinstance(attention, InfSAAttention) and attention.hops == "inf":
            attention.hops = hops_for_tolerance(float(torch.sigmoid(attention.rho_logit.detach())))
    return wide


def observe(module: nn.Module, wide: nn.Module, examples: Sequence[Tensor], batches: Sequence[int]) -> Observed:
    """Run `module`, which may be `wide` itself, once for each batch size and note what it did.

    Raises:
        Exception: whatever the module raises.
    """
    seen, dtype = Observed(module, wide), torch.float64 if module is wide else torch.float32
    watched: dict[str, nn.Module] = {name: child for name, child in module.named_modules() if isinstance(child, Block)}
    watched |= infsa_attentions(module)
    active: list[str] = []
    ends = [observed(child, name, seen.calls.setdefault(name, []), active) for name, child in watched.items()]
    runs = []
    try:
        for seed, size in enumerate(batches):
            inputs = probe(examples, size, seed, dtype)
            with torch.no_grad(), frozen_scalars.NotingScalars(module, active) as noting:
                outputs = module(*inputs)
            seen.inputs.append(inputs)
            seen.structured |= not _is_flat(outputs)
            seen.outputs.append(flatten_outputs(outputs, own_output_names(module)))
            runs.append(noting.scalars)
    finally:
        for end in reversed(ends):
            end()
    seen.scalars = frozen_scalars.agreed(*runs)
    return seen


def plan(seen: Observed) -> Plan:
    """Decide for each attention whether its form stands."""
    forms: dict[str, Form] = {}
    kept: dict[str, str] = {}
    callers: dict[int, list[str]] = {}
    for caller, module in seen.wide.named_modules():
        for child in module.children():
            callers.setdefault(id(child), []).append(caller)
    for name, attention in infsa_attentions(seen.wide).items():
        if any(name.startswith(f"{outer}.") for outer in forms):
            continue  # part of what the form replaces
        calls = seen.calls.get(name, [])
        try:
            if not calls:
                raise ModelError("forward does not call it")
            convention = Convention.seen(attention, calls)
            why = _why_it_differs(attention, convention, calls)
        except ModelError as error:
            why = error.what
        if why:
            kept[name] = why
            continue
        narrow = _may_be_narrow(seen, callers.get(id(attention), []), name.rpartition(".")[2], convention)
        forms[name] = Form(convention, narrow)
    return Plan(forms, kept)


def apply(module: nn.Module, forms: Mapping[str, Form]) -> nn.Module:
    """Put the forms into `module`, in place."""
    for name, form in forms.items():
        put_form(module.get_submodule(name), form.convention, narrow=form.narrow)
    return module


def culprits(seen: Observed, forms: Mapping[str, Form]) -> dict[str, str]:
    """Which forms change what the whole module computes, each put in alone, and why."""
    found: dict[str, str] = {}
    for name, form in forms.items():
        module = apply(copied(seen.module), {name: form})
        why = whole_difference(seen, module)
        if why:
            found[name] = f"the module around it changes with it: {why}"
    return found


def tolerance(seen: Observed) -> float:
    """What two forms of the whole module may differ by; a module that cannot run in float64 rounds in float32."""
    return TOLERANCE if seen.module is seen.wide else FLOAT32_TOLERANCE


def _is_flat(outputs: Any) -> bool:
    if isinstance(outputs, Tensor):
        return True
    return type(outputs) is tuple and all(isinstance(item, Tensor) for item in outputs)


def whole_difference(seen: Observed, module: nn.Module) -> str:
    """Say how `module` differs from the one observed on the inputs of all runs; empty where it does not."""
    for inputs, expected in zip(seen.inputs, seen.outputs, strict=True):
        try:
            with torch.no_grad():
                found = flatten_outputs(module(*inputs), own_output_names(module))
        except Exception as error:  # whatever a user's module raises
            return f"{type(error).__name__}: {error}".splitlines()[0]
        why = difference(expected, {name: found[name] for name in expected if name in found}, tolerance(seen))
        if why:
            return why
    return ""


def _why_it_differs(attention: nn.Module, convention: Convention, calls: Sequence[Call]) -> str:
    """Say how the form of `attention` differs from it; empty where it does not. ModelError where there is no form."""
    probes = _probes(attention, calls)
    why, size = _compared(attention, attention, convention, probes)
    if why or size:
        return why
    stirred = _stirred(attention)  # all zeros agree with any zeros
    why, size = _compared(stirred, stirred, convention, probes)
    return why or ("" if size else "it gives zeros, on which nothing can be compared")


def _probes(module: nn.Module, calls: Sequence[Call]) -> list[Call]:
    cut = [_few(module, call) for call in calls[:CALLS]]
    return cut + [_random(cut[0], scale, seed) for seed, scale in enumerate(SCALES)]


def _compared(
    module: nn.Module, attention: nn.Module, convention: Convention, probes: Sequence[Call], *, narrow: bool = False
) -> tuple[str, float]:
    """Say how `module` changes on the probes with the form of `attention`, in it or itself; and its largest value."""
    expected = [_run(module, call) for call in probes]
    with form_in_place(attention, convention, narrow=narrow):
        whys = (_outcome(module, *pair) for pair in zip(probes, expected, strict=True))
        return next(filter(None, whys), ""), max(map(largest, expected))


def _outcome(made: nn.Module, call: Call, expected: Any) -> str:
    try:
        return difference(expected, _run(made, call))
    except ModelError as error:
        return error.what
    except Exception as error:  # a form that does not take the shapes of the call
        return f"its form fails: {type(error).__name__}: {error}".splitlines()[0]


def _run(module: nn.Module, call: Call) -> Any:
    with torch.no_grad():
        return module.forward(*call.arguments, **call.named)


def _may_be_narrow(seen: Observed, callers: Sequence[str], attribute: str, convention: Convention) -> bool:
    """Whether a block of ours, or a class made from it, computes the same with one vector in place of [B, N, E]."""
    if len(callers) != 1 or not seen.calls.get(callers[0]):
        return False
    block, calls = seen.wide.get_submodule(callers[0]), seen.calls[callers[0]]
    if not isinstance(block, Block):
        return False
    why, _ = _compared(block, getattr(block, attribute), convention, _probes(block, calls), narrow=True)
    return not why


def _few(module: nn.Module, call: Call) -> Call:
    """The call cut to few samples and tokens where the module takes that, else as it is."""
    tensors = _tensors(call)
    if any(tensor.ndim != 3 or not tensor.is_floating_point() for tensor in tensors):
        return _wide_call(call)
    cut = _mapped(call, lambda tensor: tensor[:FEW, :FEW].double())
    try:
        _run(module, cut)
    except Exception:  # made for one number of tokens
        return _wide_call(call)
    return cut


def _wide_call(call: Call) -> Call:
    return _mapped(call, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def _random(call: Call, scale: float, seed: int) -> Call:
    """The call with random values: tensors that were equal stay equal."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[tuple[Tensor, Tensor]] = []

    def draw(tensor: Tensor) -> Tensor:
        known = next((new for old, new in drawn if old.shape == tensor.shape and torch.equal(old, tensor)), None)
        if known is not None:
            return known
        if tensor.dtype == torch.bool:
            new = torch.rand(tensor.shape, generator=generator) < 0.5
        elif not tensor.is_floating_point():
            new = tensor
        else:
            new = scale * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        drawn.append((tensor, new))
        return new

    return _mapped(call, draw)


def _mapped(call: Call, change: Any) -> Call:
    arguments, named = pytree.tree_map_only(Tensor, change, (call.arguments, dict(call.named)))
    return Call(arguments, named, None)


def _tensors(call: Call) -> list[Tensor]:
    leaves = pytree.tree_leaves((call.arguments, dict(call.named)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _stirred(attention: nn.Module) -> nn.Module:
    """A copy of `attention` with other weights: its formula shows where its own weights give zeros."""
    stirred = copied(attention)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in _floating(stirred):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(parameter + noise / max(1, parameter.shape[-1] if parameter.ndim else 1) ** 0.5)
    return stirred


def _floating(module: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in module.parameters() if parameter.is_floating_point())
