"""A Vision Transformer (class token, learned positions, pre-norm, GELU MLP) over any of the attentions.

Formula for formula the network of torchvision's `VisionTransformer`, so that checkpoints carry over.
Axes: B batch, C channels, H and W pixels, N patches, E embedding.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from infsa_deploy.errors import UsageError
from infsa_models.attention import (
    Hops,
    InfSAAttention,
    SoftmaxAttention,
    check_depth_of_series,
    check_heads,
    check_variant,
)

LAYER_NORM_EPS = 1e-6


@dataclass(frozen=True)
class ViTConfig:
    """Everything that fixes the network but its weights; image_size is (height, width) in pixels.

    norm_eps is what the norms add to the variance.

    Raises: UsageError on an impossible value; for an image size, the nearest sizes that fit are named.
    """

    variant: str
    image_size: tuple[int, int]
    patch_size: int
    in_channels: int
    embed_dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    num_classes: int
    hops: Hops = 1
    power_iterations: int = 1
    norm_eps: float = LAYER_NORM_EPS

    def __post_init__(self) -> None:
        check_variant(self.variant)
        check_depth_of_series(self.variant, self.hops, self.power_iterations)
        for name in ("patch_size", "in_channels", "embed_dim", "depth", "mlp_dim", "num_classes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)} is not possible", "it must be at least 1")
        check_heads(self.embed_dim, self.num_heads)
        check_image_size(self.image_size, self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def tokens(self) -> int:
        """Length of the token sequence: the patches and the class token."""
        return self.grid[0] * self.grid[1] + 1

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        return {**asdict(self), "image_size": list(self.image_size)}


def check_image_size(image_size: tuple[int, int], patch_size: int) -> None:
    """Raise UsageError naming the nearest sizes that fit unless patches tile the image."""
    if all(side > 0 and side % patch_size == 0 for side in image_size):
        return
    below = tuple(max(patch_size, side // patch_size * patch_size) for side in image_size)
    above = tuple(max(patch_size, -(-side // patch_size) * patch_size) for side in image_size)
    nearest = " or ".join(f"{height}x{width}" for height, width in dict.fromkeys((below, above)))
    raise UsageError(
        f"image size {image_size[0]}x{image_size[1]} (height x width) does not fit",
        f"both sides must be multiples of the patch, {patch_size} pixels",
        f"the nearest sizes that fit are {nearest}",
    )


def resize_positions(position_embedding: Tensor, from_grid: tuple[int, int], to_grid: tuple[int, int]) -> Tensor:
    """Interpolate learned positions to another patch grid, bicubically; the class token's stays as it is.

    Args: position_embedding: [1, 1 + rows·columns of from_grid, E]. Grids: (rows, columns).
    Returns: [1, 1 + rows·columns of to_grid, E], same dtype.
    """
    if from_grid == to_grid:
        return position_embedding
    class_position, patch_positions = position_embedding[:, :1], position_embedding[:, 1:]
    image = patch_positions.reshape(1, *from_grid, -1).permute(0, 3, 1, 2)  # [1, E, rows, columns]
    image = image.to(torch.promote_types(image.dtype, torch.float32))
    resized = F.interpolate(image, size=to_grid, mode="bicubic", align_corners=False, antialias=False)
    patches = resized.flatten(2).transpose(1, 2).to(position_embedding.dtype)
    return torch.cat([class_position, patches], dim=1)


class Mlp(nn.Module):
    """Two layers with an exact (erf) GELU between them, token by token."""

    def __init__(self, embed_dim: int, mlp_dim: int) -> None:
        super().__init__()
        self.expand = nn.Linear(embed_dim, mlp_dim)
        self.contract = nn.Linear(mlp_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, E] -> [B, N, E]."""
        y: Tensor = self.contract(F.gelu(self.expand(x)))
        return y


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.attention = _attention(config)
        self.norm2 = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.mlp = Mlp(config.embed_dim, config.mlp_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, E] -> [B, N, E]."""
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


def _attention(config: ViTConfig) -> nn.Module:
    if config.variant == "softmax":
        return SoftmaxAttention(config.embed_dim, config.num_heads)
    return InfSAAttention(config.embed_dim, config.num_heads, config.variant, config.hops, config.power_iterations)


class ViT(nn.Module):
    """The image classifier; its one input size is config.image_size, see at_image_size for others."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = nn.Conv2d(
            config.in_channels, config.embed_dim, kernel_size=config.patch_size, stride=config.patch_size
        )
        self.class_token = nn.Parameter(torch.randn(1, 1, config.embed_dim) * 0.02)
        self.position_embedding = nn.Parameter(torch.randn(1, config.tokens, config.embed_dim) * 0.02)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        self.head = nn.Linear(config.embed_dim, config.num_classes)

    def forward(self, image: Tensor) -> Tensor:
        """Classify normalised images: [B, C, H, W] -> logits [B, classes].

        Raises: UsageError when C, H, W are not those of the config.
        """
        expected = (self.config.in_channels, *self.config.image_size)
        if tuple(image.shape[1:]) != expected:
            raise UsageError(
                f"the model takes images [batch, {', '.join(map(str, expected))}], not {list(image.shape)}",
                "positions are learned for one grid of patches",
                "resize the image, or build the model with at_image_size((height, width))",
            )
        return self.classify(self.patch_embed(image), self.position_embedding)

    def classify(self, patches: Tensor, positions: Tensor) -> Tensor:
        """Classify embedded patches [B, E, rows, columns] at positions [1, 1 + rows·columns, E]: -> [B, classes]."""
        tokens = patches.flatten(2).transpose(1, 2)  # [B, N, E]
        x = torch.cat([self.class_token.expand(patches.shape[0], -1, -1), tokens], dim=1) + positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits

    def at_image_size(self, image_size: tuple[int, int]) -> ViT:
        """A copy of the model for another (height, width), its position table interpolated once, here.

        Raises: UsageError when patches do not tile the size.
        """
        return copy.deepcopy(self).set_image_size(image_size)

    def set_image_size(self, image_size: tuple[int, int]) -> ViT:
        """As at_image_size, of this model itself, which is returned."""
        config = replace(self.config, image_size=image_size)
        with torch.no_grad():
            table = resize_positions(self.position_embedding, self.config.grid, config.grid)
        self.position_embedding = nn.Parameter(table.clone(), requires_grad=self.position_embedding.requires_grad)
        self.config = config
        return self
