"""Adding the attention maps to what a model returns, on the patches that its tokens stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from infsa_models.attention_maps import WithAttentionMaps, attentions_with_maps
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.errors import ModelError
from infsa_deploy.export.patch_tokens import patch_tokens
from infsa_deploy.export.rewrite.deployable import infsa_attentions, to_reference
from infsa_deploy.export.rewrite.equivalence import plan
from infsa_deploy.export.rewrite.proven import Rewriting, is_plain_vit
from infsa_deploy.export.sources import Reference


def with_attention_maps(module: nn.Module, reference: Reference) -> WithAttentionMaps:
    """`module`, a form of the reference whose attention has maps, as image -> (logits, attention [B, L, H, h, w]).

    Raises:
        ModelError: there is no attention with a map, or its tokens cannot be told to be the patches of the image.
    """
    grid, original, image = _grid(reference), reference.module, reference.image
    if is_plain_vit(original):
        return WithAttentionMaps(module, grid)
    maps = WithAttentionMaps(module, grid)  # raises where no attention has a map
    known = {id(found) for found in (*attentions_with_maps(original), *infsa_attentions(original).values())}
    names = [name for name, child in original.named_modules() if id(child) in known]
    maps.tokens = patch_tokens(original, names, torch.zeros(1, image.channels, image.height, image.width), grid)
    return maps


def maps_wrapper(rewriting: Rewriting, reference: Reference) -> Callable[[nn.Module], nn.Module]:
    """What puts the maps around the rewritten module; of attention that is not rewritten, by the reference formula.

    Raises:
        ModelError: an attention computes another formula than that of the maps.
    """
    check_maps_known(rewriting if rewriting.forms else _planned(rewriting))
    return lambda module: with_attention_maps(module if rewriting.forms else to_reference(module), reference)


def check_maps_known(rewriting: Rewriting) -> None:
    """Raise ModelError where an attention was kept as it is: what its map would be is not known."""
    for name, why in rewriting.kept.items():
        raise ModelError(
            f"the attention map of {name} is not known.",
            f"it is no InfSA attention as the op has it: {why}.",
            "export without attention maps.",
        )


def _planned(rewriting: Rewriting) -> Rewriting:
    return replace(rewriting, kept=plan(rewriting.seen).kept)


def _grid(reference: Reference) -> tuple[int, int]:
    """Patches down and across: of our ViT as configured, of a foreign module by the stride of its first Conv2d."""
    if isinstance(reference.module, ViT):
        return reference.module.config.grid
    embedding = next((child for child in reference.module.modules() if isinstance(child, nn.Conv2d)), None)
    if embedding is None:
        raise ModelError(
            f"{type(reference.module).__name__} has no patch embedding.",
            "its first Conv2d would tell the grid of patches that the maps lie on.",
            "export without attention maps.",
        )
    down, across = embedding.stride
    return reference.image.height // int(down), reference.image.width // int(across)
