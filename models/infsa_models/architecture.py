"""The architecture behind a checkpoint: sizes from its tensors, the rest from metadata or as stated."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from infsa_deploy.errors import ModelError, UsageError
from infsa_models import layout
from infsa_models.vit import ViTConfig

STANDARD_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16}
# What others call our facts: the authors' checkpoints, and config.json of Hugging Face.
ALIASES = {
    "depth": ("num_layers", "num_hidden_layers"),
    "num_heads": ("num_attention_heads",),
    "norm_eps": ("layer_norm_eps",),
}
VARIANT_NAMES = {"pure_infsa": "pure", "linear_infsa": "linear"}  # the authors' names -> ours
T = TypeVar("T")


def recorded_facts(path: str | os.PathLike[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a file's metadata says about the architecture, in our terms; ModelError on an unusable value."""
    config = metadata.get("config")
    told = {**metadata, **(config if isinstance(config, dict) else {})}
    if told.get("hidden_act", "gelu") != "gelu":
        why = f"its MLPs use {told['hidden_act']}, and ours the exact GELU"
        raise ModelError(f"{path} is of another network", why, "export it with --module package.module:factory")
    facts: dict[str, Any] = {}
    for name, fits in FACTS.items():
        value = next((told[other] for other in (name, *ALIASES.get(name, ())) if told.get(other) is not None), None)
        if value is None:
            continue
        if not fits(value):
            raise ModelError(f"{path} has unusable metadata", f"{name} is {value!r}")
        facts[name] = value
    if "variant" in facts:
        facts["variant"] = VARIANT_NAMES.get(facts["variant"], facts["variant"])
    return facts


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


FACTS: dict[str, Callable[[Any], bool]] = {
    "variant": lambda value: isinstance(value, str),
    "depth": _is_count,
    "num_heads": _is_count,
    "image_size": lambda value: (
        _is_count(value) or (isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_count, value)))
    ),
    "norm_eps": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1,
    "hops": lambda value: value == "inf" or _is_count(value),
    "power_iterations": _is_count,
}


def infer_config(
    path: str, state: Mapping[str, Tensor], facts: Mapping[str, Any], spelled: Callable[[str], str] = str
) -> ViTConfig:
    """The architecture whose weights `state` (our keys) holds; facts say what shapes cannot, see load_vit.

    `spelled` turns our name of a key into the one the file uses, for messages.
    Raises: ModelError, UsageError as load_vit.
    """
    variant = facts["variant"]
    has_rho = any(key.endswith(".rho_logit") for key in state) if variant is None else variant != "softmax"
    depth = facts.get("depth") or layout.depth_of(state)
    shapes = layout.expected_shapes(min(depth, len(state)), has_rho=has_rho)
    if not set(shapes) & set(state):
        shown = ", ".join([*sorted(state)[:5], *(["..."] if len(state) > 5 else [])])
        raise ModelError(f"{path} holds no ViT that we know", f"its keys are {shown}" if state else "it is empty")
    sizes = layout.solve_sizes(state, shapes)
    layout.check_state(f"{path} does not fit", state, layout.with_sizes(shapes, sizes), spelled)
    if min(sizes.values()) < 1 or sizes["T"] < 2:
        raise ModelError(f"{path} does not fit", f"some of its tensors are empty: {sizes}", "save it again")
    if variant is None and has_rho:
        raise UsageError(
            f"{path} does not say which attention it was trained with",
            "the weights of pure and linear have the same shapes",
            "state the variant: pure or linear",
        )
    rows, columns = _trained_grid(path, sizes["T"] - 1, sizes["P"], facts)
    return ViTConfig(
        variant=variant or "softmax",
        image_size=(rows * sizes["P"], columns * sizes["P"]),
        patch_size=sizes["P"],
        in_channels=sizes["C"],
        embed_dim=sizes["E"],
        depth=depth,
        num_heads=facts["num_heads"] or _standard_heads(path, sizes["E"]),
        mlp_dim=sizes["M"],
        num_classes=sizes["K"],
        hops=facts["hops"],
        power_iterations=facts["power_iterations"],
        norm_eps=facts["norm_eps"],
    )


def _standard_heads(path: str, embed_dim: int) -> int:
    if embed_dim in STANDARD_HEADS:
        return STANDARD_HEADS[embed_dim]
    raise UsageError(
        f"{path} does not say how many attention heads it has",
        f"shapes cannot tell, and a width of {embed_dim} has no usual number",
        "state num_heads",
    )


def agreed(name: str, stated: T | None, recorded: T | None) -> T | None:
    """The one of the two that is known; UsageError when both are and differ."""
    if stated is not None and recorded is not None and stated != recorded:
        raise UsageError(
            f"{name} {stated} contradicts the checkpoint", f"the file records {recorded}", f"leave out {name}"
        )
    return recorded if stated is None else stated


def _trained_grid(path: str, patches: int, patch_size: int, facts: Mapping[str, Any]) -> tuple[int, int]:
    side = round(patches**0.5)
    rows, columns = facts["grid"] or (side, side)
    if facts["grid"] is None and "image_size" in facts:
        size = facts["image_size"]
        height, width = (size, size) if isinstance(size, int) else size
        rows, columns = height // patch_size, width // patch_size
    if rows * columns != patches:
        raise UsageError(
            f"{path} has positions for {patches} patches, which are not a grid of {rows}x{columns}",
            "positions cannot be placed without the grid they were trained on",
            f"state the grid of {patches} patches it was trained on as rows x columns: grid=(rows, columns), --grid",
        )
    return rows, columns
