"""Adding the attention maps to what a model returns, on the patches that its tokens stand for."""

from __future__ import annotations

from collections.abc import Callable

from infsa_models.attention_maps import WithAttentionMaps
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.errors import ModelError
from infsa_deploy.export.reference_form import to_reference
from infsa_deploy.export.rewrite import Rewriting
from infsa_deploy.export.sources import Reference


def with_attention_maps(module: nn.Module, reference: Reference) -> WithAttentionMaps:
    """`module`, a form of the reference whose attention has maps, as image -> (logits, attention [B, L, H, h, w]).

    Raises:
        ModelError: there is no attention with a map, or its tokens cannot be told to be the patches of the image.
    """
    return WithAttentionMaps(module, _grid(reference))


def maps_wrapper(rewriting: Rewriting, reference: Reference) -> Callable[[nn.Module], nn.Module]:
    """What puts the maps around the rewritten module; of attention that is not rewritten, by the reference formula."""
    return lambda module: with_attention_maps(to_reference(module) if not rewriting.forms else module, reference)


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
