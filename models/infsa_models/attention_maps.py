"""A classifier together with what its attention looks at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from infsa_deploy.errors import ModelError

OUTPUTS = ("logits", "attention")


class WithAttentionMaps(nn.Module):
    """Runs a classifier and returns the map of each of its attentions beside the logits.

    An attention is any submodule with a method `attention_map` that takes what the attention takes, [B, N, E], and
    returns [B, H, N]. A submodule that is called several times gives a map each time.

    Args: classifier: image [B, C, height, width] -> logits [B, classes]. grid: patches (down, across).
        tokens: for each call the token of each patch, row by row; by default the last tokens are the patches, and
        what comes before them (a class token) is left out.
    Raises: ModelError when no submodule has a map, and in forward when the maps do not fit into one tensor.
    """

    output_names = OUTPUTS

    def __init__(
        self, classifier: nn.Module, grid: tuple[int, int], tokens: tuple[tuple[int, ...], ...] | None = None
    ) -> None:
        super().__init__()
        if not attentions_with_maps(classifier):
            raise ModelError(
                f"{type(classifier).__name__} has no attention whose map is known",
                "maps are known of InfSA attention and of the softmax attention of our own models",
                "leave out the attention maps",
            )
        self.classifier = classifier
        self.grid = grid
        self.tokens = tokens

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """[B, C, height, width] -> logits [B, classes] and maps [B, L, H, h, w]: layers in order, heads, patches."""
        maps: list[Tensor] = []

        def record(attention: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            maps.append(attention.attention_map(*inputs, **named))  # type: ignore[operator]

        hooks = [a.register_forward_pre_hook(record, with_kwargs=True) for a in attentions_with_maps(self.classifier)]
        try:
            logits: Tensor = self.classifier(image)
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(logits, Tensor):
            raise ModelError(
                f"{type(self.classifier).__name__} returns no single tensor of logits",
                "the maps stand beside the logits of a classifier",
                "leave out the attention maps",
            )
        return logits, self._stacked(maps)

    def _stacked(self, maps: list[Tensor]) -> Tensor:
        heads = sorted({shares.shape[1] for shares in maps})
        if len(heads) > 1 or (self.tokens and len(self.tokens) != len(maps)):
            raise ModelError(
                "the attention maps do not fit into one tensor [B, L, H, h, w]",
                f"{len(maps)} calls have {' or '.join(map(str, heads))} heads",
                "leave out the attention maps",
            )
        return torch.stack([self._on_grid(index, shares) for index, shares in enumerate(maps)], dim=1)

    def _on_grid(self, call: int, shares: Tensor) -> Tensor:
        """[B, H, N] -> [B, H, h, w]."""
        patches = self.grid[0] * self.grid[1]
        tokens = self.tokens[call] if self.tokens else range(shares.shape[2] - patches, shares.shape[2])
        start = tokens[0]
        together = list(tokens) == list(range(start, start + patches))
        chosen = shares[..., start : start + patches] if together else shares[..., torch.tensor(tokens)]
        return chosen.reshape(*shares.shape[:2], *self.grid)


def attentions_with_maps(module: nn.Module) -> list[nn.Module]:
    """The outermost modules with a map: a part of an attention that has one as well is not counted again."""
    if hasattr(module, "attention_map"):
        return [module]
    found = [attention for child in module.children() for attention in attentions_with_maps(child)]
    return list(dict.fromkeys(found))
