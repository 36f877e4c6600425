"""How far from the truth a kernel may be: twice as far as an eager run of the same precision."""

from __future__ import annotations

import torch

ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SMALLEST = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


def assert_close(name: str, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> float:
    """Fail unless |got - exact| <= 2 |eager - exact|, each by its largest element, and return the ratio used.

    `eager` is the op in PyTorch on the same inputs, of the same type, accumulating in float32; `exact` is the same
    computed in float64. A handful of outputs may by chance be rounded less than they can be, even not at all, so the
    eager error counts as no less than the rounding of the largest output, half its last place: no run of that type is
    better on purpose.
    """
    assert got.shape == exact.shape
    assert got.dtype == eager.dtype
    assert torch.isfinite(got).all(), f"{name}: {(~torch.isfinite(got)).sum()} of {got.numel()} are not finite"
    error = (got.double() - exact).abs().max().item()
    floor = max(exact.abs().max().item() * ROUNDOFF[got.dtype], SMALLEST[got.dtype] / 2)
    allowed = max((eager.double() - exact).abs().max().item(), floor)
    print(f"{name}: error {error:.2e}, eager {allowed:.2e}, ratio {error / allowed:.2f} of 2")
    assert error <= 2 * allowed, f"{name}: error {error:.3e} is more than twice {allowed:.3e}"
    return error / allowed
