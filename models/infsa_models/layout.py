"""What a checkpoint of a ViT holds: key names, shapes in symbols, sizes they imply.

Symbols: E embedding, M hidden width of the MLP, C channels, P patch, T tokens, K classes.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from infsa_deploy.errors import ModelError
from infsa_models.namings import OUR_BLOCK

Shape = tuple[int | str, ...]

OUTER: dict[str, Shape] = {
    "class_token": (1, 1, "E"),
    "position_embedding": (1, "T", "E"),
    "patch_embed.weight": ("E", "C", "P", "P"),
    "patch_embed.bias": ("E",),
    "norm.weight": ("E",),
    "norm.bias": ("E",),
    "head.weight": ("K", "E"),
    "head.bias": ("K",),
}
BLOCK: dict[str, Shape] = {
    "norm1.weight": ("E",),
    "norm1.bias": ("E",),
    **{f"attention.{name}_proj.weight": ("E", "E") for name in ("q", "k", "v", "out")},
    **{f"attention.{name}_proj.bias": ("E",) for name in ("q", "k", "v", "out")},
    "attention.rho_logit": (),
    "norm2.weight": ("E",),
    "norm2.bias": ("E",),
    "mlp.expand.weight": ("M", "E"),
    "mlp.expand.bias": ("M",),
    "mlp.contract.weight": ("E", "M"),
    "mlp.contract.bias": ("E",),
}


def expected_shapes(depth: int, *, has_rho: bool) -> dict[str, Shape]:
    """Every key of a ViT of that depth with its shape in symbols; softmax attention has no rho."""
    block = {key: shape for key, shape in BLOCK.items() if has_rho or not key.endswith("rho_logit")}
    blocks = {f"blocks.{i}.{key}": shape for i in range(depth) for key, shape in block.items()}
    return {**OUTER, **blocks}


def known_keys(state: Mapping[str, Tensor]) -> int:
    """How many of the (our) keys are those of a ViT."""
    blocks = (OUR_BLOCK.fullmatch(key) for key in state)
    return sum(key in OUTER for key in state) + sum(block is not None and block[2] in BLOCK for block in blocks)


def depth_of(state: Mapping[str, Tensor]) -> int:
    """Number of transformer layers that the (our) keys speak of."""
    keys_of_layer = Counter(int(match[1]) for match in map(OUR_BLOCK.fullmatch, state) if match)
    # A stray key of a layer far away must not make all layers up to it count as missing.
    layers = [layer for layer, keys in keys_of_layer.items() if 2 * keys > len(BLOCK)] or list(keys_of_layer)
    return min(max(layers) + 1, len(state)) if layers else 0


def solve_sizes(state: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The value of each symbol, by vote of all tensors that show it, so that one misfit stands out."""
    votes: dict[str, Counter[int]] = {}
    for key, shape in shapes.items():
        if key in state and state[key].ndim == len(shape):
            for symbol, size in zip(shape, state[key].shape, strict=True):
                if isinstance(symbol, str):
                    votes.setdefault(symbol, Counter())[size] += 1
    return {symbol: counter.most_common(1)[0][0] for symbol, counter in votes.items()}


def with_sizes(shapes: Mapping[str, Shape], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes with their symbols replaced by sizes; -1 where no tensor showed one."""
    return {
        key: tuple(part if isinstance(part, int) else sizes.get(part, -1) for part in shape)
        for key, shape in shapes.items()
    }


def check_state(
    what: str,
    state: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    spelled: Callable[[str], str] = str,
) -> None:
    """Raise ModelError, naming all keys that are missing, extra or misshapen, unless state has these shapes.

    A size of -1 fits any. `spelled` turns our name of a key into the one the file uses.
    """
    missing = {spelled(key): key for key in sorted(set(shapes) - set(state))}
    extra = {spelled(key): key for key in sorted(set(state) - set(shapes))}
    lines = [f"missing: {name}{_nearest(name, extra, 'the file has')}" for name in missing]
    lines += [f"extra: {name}{_nearest(name, missing or map(spelled, shapes), 'did it mean')}" for name in extra]
    for key in sorted(set(shapes) & set(state)):
        tensor, shape = state[key], shapes[key]
        fits = tensor.ndim == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not (fits and tensor.is_floating_point()):
            wanted = str(list(shape)).replace("-1", "any")
            found = f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
            lines.append(f"misshapen: {spelled(key)} is {found}, expected {wanted} of floats")
    if lines:
        raise ModelError(
            what,
            "\n       ".join(lines),
            "rename or reshape these keys, or state the right model for the file",
        )


def _nearest(name: str, others: Iterable[str], label: str) -> str:
    same_layer = [other for other in others if _layer(other) == _layer(name)]
    near = difflib.get_close_matches(name, same_layer, n=1, cutoff=0.7)
    return f" ({label} {near[0]}?)" if near else ""


def _layer(key: str) -> str:
    number = re.search(r"\d+", key)
    return number[0] if number else ""
