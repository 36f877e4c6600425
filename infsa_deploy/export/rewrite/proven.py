"""From the user's module to a traced program that is proven to compute the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infsa_models.vit import ViT
from torch import Tensor, nn

from infsa_deploy.errors import DeployError, ModelError
from infsa_deploy.export.interface import input_names
from infsa_deploy.export.rewrite.copying import HOOKS, copied
from infsa_deploy.export.rewrite.equivalence import (
    Form,
    Observed,
    Plan,
    apply,
    culprits,
    observe,
    plan,
    whole_difference,
    widened,
)
from infsa_deploy.export.rewrite.program_proof import program_difference
from infsa_deploy.export.trace import FlatOutputs, Program, capture

SMALL_GRID = (2, 3)  # patches down and across
BATCHES = (1, 3)  # of the runs compared; what is traced has a batch of 2
LARGE, LARGE_BATCHES = 20_000_000, (1, 2)  # weights from which runs in float64 take seconds
OURS = ("infsa_models.", "torch.nn.")

Wrap = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Rewriting:
    """A module on its way to a program.

    Attributes:
        original: the user's module.
        examples: its example inputs.
        static_batch: the one batch size, or None.
        seen: what the module did in float64.
        forms: the attentions that are rewritten.
        kept: why others are not, by qualified name.
    """

    original: nn.Module
    examples: Sequence[Tensor]
    static_batch: int | None
    seen: Observed
    forms: Mapping[str, Form] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)

    def scalars(self) -> list[Any]:
        """The numbers that the rewritten module takes out of its weights: those of replaced forwards are gone."""
        return [value for active, value in self.seen.scalars if not self.forms.keys() & set(active)]


def rewrite(module: nn.Module, examples: Sequence[Tensor], *, fold: bool, static_batch: int | None) -> Rewriting:
    """Run `module` in float64 and decide which of its attentions are put on the custom ops; none without `fold`."""
    large = sum(parameter.numel() for parameter in module.parameters()) > LARGE
    batches = (static_batch, static_batch) if static_batch else LARGE_BATCHES if large else BATCHES
    seen = _observed(module, examples, batches)
    planned = plan(seen) if fold else Plan({}, {})
    return Rewriting(module, examples, static_batch, seen, planned.forms, planned.kept)


def _observed(module: nn.Module, examples: Sequence[Tensor], batches: Sequence[int]) -> Observed:
    wide = widened(module)
    if is_plain_vit(wide):  # takes any size: a small one shows the formula as well
        assert isinstance(wide, ViT)
        height, width = (side * wide.config.patch_size for side in SMALL_GRID)
        wide.set_image_size((height, width))
        examples = (examples[0].new_zeros(1, wide.config.in_channels, height, width),)
    try:
        return observe(wide, wide, examples, batches)
    except Exception:  # a type that forward itself names; in float32 it ran before
        return _observed_in_float32(module, wide, examples, batches)


def _observed_in_float32(
    module: nn.Module, wide: nn.Module, examples: Sequence[Tensor], batches: Sequence[int]
) -> Observed:
    try:
        return observe(copied(module).eval(), wide, examples, batches)
    except DeployError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(module).__name__} fails on a batch of {' or '.join(map(str, sorted(set(batches))))}.",
            f"{type(error).__name__}: {error}".splitlines()[0],
            "state the batch size it is to run with (--batch), or make forward take any.",
        ) from error


def proven_program(rewriting: Rewriting, wrap: Wrap | None = None) -> tuple[Program, Rewriting]:
    """Trace the rewritten module, in what `wrap` puts around it, and prove the program.

    Where the forms together change the module, those at fault are dropped: the rewriting returned says which.

    Raises:
        ModelError: the module cannot be traced, or the program computes something else.
    """
    made = apply(copied(rewriting.original).eval(), rewriting.forms)
    try:
        program = _captured(rewriting, _wrapped(made, rewriting, wrap))
        why = _difference(program, rewriting, wrap)
    except ModelError as error:
        program, why, failure = None, error.what, error
    if program is not None and not why:
        return program, rewriting
    smaller = _without_culprits(rewriting)
    if smaller is not None:
        return proven_program(smaller, wrap)
    raise failure if program is None else _unfaithful(rewriting, why)


def proven_module(rewriting: Rewriting) -> nn.Module:
    """The rewritten module itself, compared with the original; ModelError where they differ."""
    seen = rewriting.seen
    why = whole_difference(seen, apply(copied(seen.module), rewriting.forms))
    if why:
        raise _unfaithful(rewriting, why)
    return apply(copied(rewriting.original).eval(), rewriting.forms)


def flattened(module: nn.Module, rewriting: Rewriting) -> nn.Module:
    """`module`, a form of the original, so that it returns a tensor or a tuple of tensors."""
    if not rewriting.seen.structured:
        return module
    names_in = input_names(rewriting.original, len(rewriting.examples))
    return FlatOutputs(module, names_in, tuple(rewriting.seen.outputs[0])).eval()


def _wrapped(module: nn.Module, rewriting: Rewriting, wrap: Wrap | None) -> nn.Module:
    return flattened(module, rewriting) if wrap is None else wrap(module).eval()


def _captured(rewriting: Rewriting, module: nn.Module) -> Program:
    batch, scalars = rewriting.static_batch, rewriting.scalars()
    return capture(module, rewriting.examples, static_batch=batch, scalars=scalars)


def _difference(program: Program, rewriting: Rewriting, wrap: Wrap | None) -> str:
    """Say how the program differs; of a plain ViT of ours, whose trace is known, how the rewritten module does."""
    seen = rewriting.seen
    if is_plain_vit(seen.wide):
        return whole_difference(seen, apply(copied(seen.wide), rewriting.forms))
    wide = _wrapped(apply(copied(seen.wide), rewriting.forms), rewriting, wrap)
    return program_difference(program, seen, wide)


def _without_culprits(rewriting: Rewriting) -> Rewriting | None:
    """The rewriting without the forms that change the module; None where there are none."""
    found = culprits(rewriting.seen, rewriting.forms)
    if not found:
        return None
    forms = {name: form for name, form in rewriting.forms.items() if name not in found}
    return replace(rewriting, forms=forms, kept={**rewriting.kept, **found})


def _unfaithful(rewriting: Rewriting, why: str) -> ModelError:
    seen, name = rewriting.seen, type(rewriting.original).__name__
    again = whole_difference(seen, seen.module)
    if again:
        return ModelError(
            f"{name} gives other outputs for the same input.",
            f"run twice in eval mode, {again}: dropout or noise that stays on, or a state kept between calls.",
            "make forward depend on its inputs alone in eval mode.",
        )
    return ModelError(
        f"what was traced of {name} is not what it computes.",
        f"compared in float64, {why}.",
        "take out of forward what a tracer cannot see: branches on values or sizes, types other than the model's.",
    )


def is_plain_vit(module: nn.Module) -> bool:
    """True for a ViT of ours in which nothing is another's: no class, hook or function put into it."""
    if type(module) is not ViT:
        return False
    return all(type(child).__module__.startswith(OURS) and not _has_additions(child) for child in module.modules())


def _has_additions(module: nn.Module) -> bool:
    return any(getattr(module, name) for name in HOOKS) or "forward" in vars(module)
