"""A ViT that takes images of any size in its patch grid: positions are interpolated in the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
import torch
from infsa_models.vit import ViT, interpolate_positions
from torch import Tensor, nn

from infsa_deploy.errors import ModelError
from infsa_deploy.export.trace import trace
from infsa_deploy.records import ImageSpec

ROWS, COLUMNS = "rows", "columns"  # names of the free axes: patches down and across


class DynamicSizeViT(nn.Module):
    """Runs `vit` on images [B, C, H, W] whose sides are any multiples of its patch."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, image: Tensor) -> Tensor:
        patches = self.vit.patch_embed(image)
        vit, grid = self.vit, (patches.shape[2], patches.shape[3])
        return vit.classify(patches, interpolate_positions(vit.position_embedding, vit.config.grid, grid))


def trace_dynamic_size(module: nn.Module, image: ImageSpec, static_batch: int | None) -> tuple[ir.Model, ImageSpec]:
    """Trace one of our ViTs with free height and width, and say so in its image spec.

    Raises:
        ModelError: the module is no ViT of ours, so that its positions are not known.
    """
    if not isinstance(module, ViT):
        raise ModelError(
            f"{type(module).__name__} cannot be exported with --dynamic-size.",
            "only our own ViT says where its positions are and how they are interpolated.",
            "export it once for each --image-size.",
        )
    patch = module.config.patch_size
    example = torch.zeros(1, image.channels, 2 * patch, 3 * patch)  # torch.export specialises a single row or column
    free = {2: patch * torch.export.Dim(ROWS), 3: patch * torch.export.Dim(COLUMNS)}
    model = trace(DynamicSizeViT(module), (example,), static_batch=static_batch, free_axes=free)
    return name_patch_axes(model), replace(image, multiple_of=patch)


def patch_grid(image: ImageSpec) -> dict[str, int]:
    """Sizes of the free axes for an image of the spec's height and width; empty for a model of one size."""
    if image.multiple_of is None:
        return {}
    return {ROWS: image.height // image.multiple_of, COLUMNS: image.width // image.multiple_of}


def name_patch_axes(model: ir.Model) -> ir.Model:
    """Give the axes of the patch grid the names ROWS and COLUMNS wherever the tracer invented its own."""
    convolution = next(node for node in model.graph if node.op_type == "Conv")
    shape = convolution.outputs[0].shape
    assert shape is not None
    names = dict(zip((str(dim) for dim in shape[2:]), (ROWS, COLUMNS), strict=True))
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([_renamed(dim, names) for dim in value.shape])
    return model


def _renamed(dim: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | ir.SymbolicDim:
    if isinstance(dim, int) or dim.value is None:
        return dim
    return ir.SymbolicDim(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), dim.value))
