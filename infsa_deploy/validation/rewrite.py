"""Compare, in float64, the form of a model that is exported with the user's own module, and name what differs.

In float64 two forms of one formula agree to about 1e-12, and no rounding of a narrow type can hide that they do not.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.rewrite.equivalence import apply, culprits, whole_difference, widened
from infsa_deploy.export.rewrite.proven import rewrite
from infsa_deploy.runtime.sessions.protocol import Arrays
from infsa_deploy.validation.reference import ReferenceRun
from infsa_deploy.validation.tolerance import Wide

LIMIT = 1e-9  # relative to the largest value
SERIES_LIMIT = 1e-5  # where an infinite series is cut: deployable.hops_for_tolerance takes 1e-6 of the values


def exported_form(module: nn.Module, feeds: Arrays, static_batch: int | None) -> nn.Module:
    """Put the attentions of a float64 copy of `module` on custom ops, as an export does; `feeds` are example inputs."""
    examples = [torch.from_numpy(array[:1]) for array in feeds.values()]
    rewriting = rewrite(module, examples, fold=True, static_batch=static_batch)
    seen, forms = rewriting.seen, rewriting.forms
    if whole_difference(seen, apply(copied(seen.module), forms)):
        changed = culprits(seen, forms)
        forms = {name: form for name, form in forms.items() if name not in changed}
    return apply(widened(module), forms)


def rewrite_difference(module: nn.Module, form: nn.Module, feeds: Arrays, truth: Arrays) -> str:
    """Say which module of `form` differs from that of `module`, whose outputs on `feeds` are `truth`; empty if none."""
    limit = SERIES_LIMIT if any(getattr(m, "hops", 1) == "inf" for m in module.modules()) else LIMIT
    found = ReferenceRun(form, "fp64")(feeds)
    worst = max(
        (relative_difference(array, truth[name]) for name, array in found.items() if name in truth), default=0.0
    )
    if worst <= limit:
        return ""
    names = {name for name, _ in module.named_modules()}
    ours, theirs = (ReferenceRun(each, "fp64").inner(feeds, names) for each in (module, form))
    named = [(name, relative_difference(theirs[name], array)) for name, array in ours.items() if name in theirs]
    name, relative = next(((name, value) for name, value in named if not value <= limit), ("", worst))
    return f"{name or 'the whole model'} differs from the user's module by {relative:.2g} in float64"


def relative_difference(found: Wide, truth: Wide) -> float:
    """The largest difference over the largest value of `truth`; infinite where shapes or numbers cannot be compared."""
    try:
        shape = np.broadcast_shapes(found.shape, truth.shape)
    except ValueError:
        return float("inf")
    difference = float(np.abs(np.broadcast_to(found, shape) - truth).max(initial=0))
    if not np.isfinite(difference):
        return float("inf")
    return difference / (float(np.abs(truth).max(initial=0)) or 1.0)
