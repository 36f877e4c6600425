"""How far a correct implementation in a narrow type may be from float64."""

from __future__ import annotations

import pytest
import torch

ERROR_FACTOR = 2.0


def _assert_within(found: torch.Tensor, exact: torch.Tensor, narrow: torch.Tensor, dtype: torch.dtype) -> None:
    """The error is at most twice that of the same formula run in `dtype`, plus one unit in the last place."""
    ulp = torch.finfo(dtype).eps * float(exact.abs().max())
    allowed = ERROR_FACTOR * float((narrow.double() - exact).abs().max()) + ulp
    error = float((found.double() - exact).abs().max())
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}"


@pytest.fixture
def assert_within():
    return _assert_within
