"""A classifier together with what its attention looks at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from infsa_deploy.errors import ModelError

OUTPUTS = ("logits", "attention")


class WithAttentionMaps(nn.Module):
    """Runs a classifier and returns the map of each of its attentions beside the logits.

    An attention is any submodule with a method `attention_map(x)`, [B, N, E] -> [B, H, N], that the classifier calls
    with x alone. The last tokens are the patches, row by row; what comes before them (a class token) is left out.

    Args: classifier: image [B, C, height, width] -> logits [B, classes]. grid: patches (down, across).
    Raises: ModelError when no submodule has a map.
    """

    output_names = OUTPUTS

    def __init__(self, classifier: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        if not any(hasattr(module, "attention_map") for module in classifier.modules()):
            raise ModelError(
                f"{type(classifier).__name__} has no attention whose map is known",
                "maps are known of InfSA attention and of the softmax attention of our own models",
                "leave out the attention maps",
            )
        self.classifier = classifier
        self.grid = grid

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, C, height, width] -> logits [B, classes] and maps [B, L, H, h, w]: layers in order, heads, patches."""
        maps: list[Tensor] = []

        def record(attention: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            maps.append(attention.attention_map(*inputs, **named))  # type: ignore[operator]

        hooks = [a.register_forward_pre_hook(record, with_kwargs=True) for a in _with_maps(self.classifier)]
        try:
            logits: Tensor = self.classifier(image)
        finally:
            for hook in hooks:
                hook.remove()
        patches = self.grid[0] * self.grid[1]
        return logits, torch.stack(maps, dim=1)[..., -patches:].reshape(*maps[0].shape[:1], len(maps), -1, *self.grid)


def _with_maps(module: nn.Module) -> list[nn.Module]:
    """The outermost modules with a map: a part of an attention that has one as well is not counted again."""
    if hasattr(module, "attention_map"):
        return [module]
    found = [attention for child in module.children() for attention in _with_maps(child)]
    return list(dict.fromkeys(found))
