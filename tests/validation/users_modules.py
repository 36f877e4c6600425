"""Modules as users write them, with one set of weights: what `--module` names in the tests of validation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.export.authors_attention import ForeignAttention, ForeignClassifier


class GatedAttention(ForeignAttention):
    """The parent's output through a gate without weights of its own: only the class tells it from the parent."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        y, _ = super().forward(query, key, value)
        return y * torch.sigmoid(4 * query), None


def plain() -> nn.Module:
    torch.manual_seed(5)
    return ForeignClassifier().eval()


def gated() -> nn.Module:
    """`plain` with the same weights and a gate on its second attention."""
    model = plain()
    model.second.__class__ = GatedAttention
    return model


class TwoInputs(nn.Module):
    """An image and which of its patches count, to a dict of tensors: boxes, a tuple, and how many counted."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.patches, self.boxes = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 4)

    def forward(self, image: Tensor, mask: Tensor) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        tokens = self.patches(image).flatten(2).transpose(1, 2) * mask.unsqueeze(-1)
        return {"boxes": self.boxes(tokens), "pair": (tokens.mean(1), tokens.amax((1, 2))), "count": mask.sum(1)}
