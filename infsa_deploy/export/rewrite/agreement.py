"""Saying whether two results agree, to a share of the largest value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

TOLERANCE = 1e-9  # of the largest value, in float64: about 1e6 roundings
FLOAT32_TOLERANCE = 1e-5  # where a model computes in nothing but float32: about 1e2 roundings


def difference(expected: Any, found: Any, tolerance: float = TOLERANCE) -> str:
    """Say how `found` differs from `expected`, a tensor or any structure of them; empty where they agree."""
    (wanted, layout), (given, other) = pytree.tree_flatten(expected), pytree.tree_flatten(found)
    if layout != other:
        return "the result has another structure"
    reasons = (_of_leaf(a, b, tolerance) for a, b in zip(wanted, given, strict=True))
    return next(filter(None, reasons), "")


def largest(value: Any) -> float:
    """The largest magnitude in a tensor or a structure of them; 0 where there is nothing."""
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor) and leaf.numel()]
    return max((float(tensor.detach().double().abs().max()) for tensor in tensors), default=0.0)


def relative_error(expected: Tensor, found: Tensor) -> float:
    """The largest error over the largest expected value; infinite where one of the two alone is not finite."""
    if not expected.numel():
        return 0.0
    a, b = expected.detach().double(), found.detach().double()
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return float("inf")
    scale = float(a[finite].abs().max()) if bool(finite.any()) else 0.0
    error = float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0
    return error / scale if scale else float(error > 0) * float("inf") if error else 0.0


def _of_leaf(expected: Any, found: Any, tolerance: float) -> str:
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        same = type(expected) is type(found) and (isinstance(expected, Tensor) or bool(expected == found))
        return "" if same else "a part of the result that is no tensor differs"
    if expected.shape != found.shape:
        return f"its shape is {list(found.shape)}, not {list(expected.shape)}"
    if not (expected.is_floating_point() and found.is_floating_point()):
        return "" if torch.equal(expected, found) else "whole numbers differ"
    error = relative_error(expected, found)
    return "" if error <= tolerance else f"it differs by {error:.2g} of its largest value"
