"""Inputs to compare two forms of a model on, made from its example inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def has_batch_axis(examples: Sequence[Tensor]) -> list[bool]:
    """Which inputs have the batch as their first axis: those as long in it as the image, the first with four axes."""
    image = next((x for x in examples if x.ndim == 4), examples[0])
    return [x.ndim > 0 and x.shape[0] == image.shape[0] for x in examples]


def with_batch(examples: Sequence[Tensor], size: int) -> tuple[Tensor, ...]:
    """The examples as a batch of `size`; inputs without a batch axis stay as they are."""
    batched = zip(examples, has_batch_axis(examples), strict=True)
    return tuple(x[:1].expand(size, *x.shape[1:]).contiguous() if batch else x for x, batch in batched)


def probe(examples: Sequence[Tensor], size: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Random inputs like the examples, a batch of `size`, floating ones as `dtype`.

    Images are normal; other floats are uniform in the range of the example, or [0, 1) where it is one value; whole
    numbers and truths are drawn from those that the example may hold.
    """
    generator = torch.Generator().manual_seed(seed)
    return tuple(_like(x, generator, dtype) for x in with_batch(examples, size))


def _like(example: Tensor, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    shape = example.shape
    if example.dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not example.is_floating_point():
        low, high = (int(example.min()), int(example.max())) if example.numel() else (0, 0)
        return torch.randint(min(low, 0), high + 1, shape, generator=generator, dtype=example.dtype)
    if example.ndim == 4:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    least, most = (float(example.min()), float(example.max())) if example.numel() else (0.0, 1.0)
    least, most = (least, most) if most > least else (0.0, 1.0)
    return (least + (most - least) * torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype)
