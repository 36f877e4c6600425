"""Finding which tokens of an attention are the patches of the image, by changing patches and looking.

1. Attention returns zeros meanwhile, so that nothing mixes tokens; a module that mixes them otherwise is refused.
2. For each bit of a patch's number two images are made: one with the patches changed that have the bit, one with those
   that have it not. A token that changes in one of each two says its patch, bit by bit; one that never changes is no
   patch (a class token); one that changes in both stands for several.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from infsa_deploy.errors import ModelError
from infsa_deploy.export.rewrite.calls import sources_of
from infsa_deploy.export.rewrite.copying import copied

CHANGED = 1e-4  # of the largest value: rounding differs by less between samples of a batch


def patch_tokens(
    module: nn.Module, names: Sequence[str], image: Tensor, grid: tuple[int, int]
) -> tuple[tuple[int, ...], ...]:
    """For each call of the attentions `names`, in order, the token of each patch, row by row.

    Args:
        module: the model, image -> outputs.
        names: qualified names of its attentions.
        image: one image [1, C, H, W], for its size and type.
        grid: patches down and across.

    Raises:
        ModelError: an attention's tokens are not the patches of one whole image, each once.
    """
    calls = _tokens_seen(module, names, _changed_images(image, grid))
    if not calls:
        raise _refusal("no attention", "is called", "")
    return tuple(_placed(name, tokens, grid) for name, tokens in calls)


def _changed_images(image: Tensor, grid: tuple[int, int]) -> Tensor:
    """The image as it is, then for each bit with and without: [1 + 2·bits, C, H, W]."""
    generator = torch.Generator().manual_seed(0)
    base, change = (torch.randn(image.shape[1:], generator=generator, dtype=image.dtype) for _ in range(2))
    numbers = torch.arange(1, grid[0] * grid[1] + 1).reshape(1, *grid)
    side = (image.shape[2] // grid[0], image.shape[3] // grid[1])
    images = [base]
    for bit in range(_bits(grid)):
        has = (numbers >> bit) & 1
        for chosen in (has, 1 - has):
            mask = chosen.repeat_interleave(side[0], 1).repeat_interleave(side[1], 2).to(image.dtype)
            whole = torch.zeros_like(base)
            whole[:, : mask.shape[1], : mask.shape[2]] = mask
            images.append(base + change * whole)
    return torch.stack(images)


def _bits(grid: tuple[int, int]) -> int:
    return (grid[0] * grid[1]).bit_length()


def _tokens_seen(module: nn.Module, names: Sequence[str], images: Tensor) -> list[tuple[str, Tensor]]:
    """The keys of each call, [samples, N, E], with attention that returns zeros."""
    made = copied(module).eval()
    calls: list[tuple[str, Tensor]] = []
    for name in names:
        _silence(made.get_submodule(name), name, calls)
    with torch.no_grad():
        made(images)
    for name, keys in calls:
        if len(keys) != len(images):
            raise _refusal(name, f"gets {len(keys)} sequences for {len(images)} images", "it sees windows or parts")
    return calls


def _silence(attention: nn.Module, name: str, calls: list[tuple[str, Tensor]]) -> None:
    original, signature = attention.forward, inspect.signature(attention.forward)
    batch_first = bool(getattr(attention, "batch_first", True))

    def silent(*arguments: Any, **named: Any) -> Any:
        keys = sources_of(signature, arguments, named)[1]
        calls.append((name, keys if batch_first else keys.transpose(0, 1)))
        return pytree.tree_map_only(Tensor, torch.zeros_like, original(*arguments, **named))

    attention.forward = silent


def _placed(name: str, tokens: Tensor, grid: tuple[int, int]) -> tuple[int, ...]:
    differs = (tokens[1:] - tokens[:1]).abs().amax(dim=-1) > CHANGED * tokens.abs().max()  # samples N
    with_bit, without = differs[0::2], differs[1::2]
    if bool((with_bit & without).any()):
        raise _refusal(name, "has tokens that depend on several patches", "they overlap, or are mixed before it")
    if bool(((with_bit | without).any(0) & ~(with_bit | without).all(0)).any()):
        raise _refusal(name, "has tokens that hardly change with their patch", "")
    weights = 2 ** torch.arange(len(with_bit)).unsqueeze(1)
    numbers = ((with_bit * weights).sum(0) - 1).tolist()  # -1 of a token that is no patch
    count = grid[0] * grid[1]
    if sorted(number for number in numbers if number >= 0) != list(range(count)):
        raise _refusal(name, f"has no token for each of the {grid[0]}x{grid[1]} patches", "or several for one")
    return tuple(numbers.index(patch) for patch in range(count))


def _refusal(name: str, what: str, why: str) -> ModelError:
    return ModelError(
        f"attention maps cannot be placed: {name} {what}.",
        f"{why}{'; ' if why else ''}a map lies on the patches of one whole image, a token each.",
        "export without attention maps.",
    )
