"""A ViT that takes images of any size in its patch grid: positions are interpolated in the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir
import torch
from infsa_models.vit import ViT
from torch import Tensor, nn
from torch.nn import functional

from infsa_deploy.errors import ModelError
from infsa_deploy.export.rewrite.copying import HOOKS
from infsa_deploy.export.rewrite.proven import Rewriting, proven_module
from infsa_deploy.export.trace import trace
from infsa_deploy.graph.cost.free_axes import COLUMNS, ROWS
from infsa_deploy.records.model import ImageSpec


class DynamicSizeViT(nn.Module):
    """Runs `vit` on images [B, C, H, W] whose sides are any multiples of its patch."""

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, image: Tensor) -> Tensor:
        patches = self.vit.patch_embed(image)
        vit, grid = self.vit, (patches.shape[2], patches.shape[3])
        return vit.classify(patches, interpolate_by_axis(vit.position_embedding, vit.config.grid, grid))


def interpolate_by_axis(positions: Tensor, from_grid: tuple[int, int], to_grid: tuple[int, int]) -> Tensor:
    """What `resize_positions` gives, as two matrix products: bicubic weights are a product of one for each axis.

    Resizing E channels of a large grid takes a CPU runtime as long as a transformer layer in int8; here only a unit
    matrix is resized on each axis, which makes its weights.

    Args:
        positions: [1, 1 + rows·columns, E], the class token's first.
        from_grid: rows and columns of `positions`.
        to_grid: rows and columns wanted; may be symbolic in a trace.
    """
    down, across = (_axis_weights(*sizes).to(positions.dtype) for sizes in zip(from_grid, to_grid, strict=True))
    patches = positions[:, 1:]
    rows = down @ patches.reshape(1, from_grid[0], -1)  # 1 to_rows columns*E; no 2-D weight, which int8 would take
    grid = across @ rows.reshape(to_grid[0], from_grid[1], patches.shape[2])  # to_rows to_columns E
    return torch.cat([positions[:, :1], grid.flatten(0, 1).unsqueeze(0)], dim=1)


def _axis_weights(size: int, to_size: int) -> Tensor:
    """[to_size, size]: each row the bicubic weights of one new place on an axis of `size`."""
    unit = torch.eye(size).reshape(1, size, size, 1)
    return functional.interpolate(unit, size=(to_size, 1), mode="bicubic", align_corners=False)[0, :, :, 0].T


def trace_dynamic_size(rewriting: Rewriting, image: ImageSpec) -> tuple[ir.Model, ImageSpec]:
    """Trace one of our ViTs with free height and width, and say so in its image spec.

    Raises:
        ModelError: the module is no ViT of ours, or does more than our ViT in its `forward`, which is not traced.
    """
    module = rewriting.original
    if not isinstance(module, ViT):
        raise ModelError(
            f"{type(module).__name__} cannot be exported with --dynamic-size.",
            "only our own ViT says where its positions are and how they are interpolated.",
            "export it once for each --image-size.",
        )
    changed = _changed(module)
    if changed:
        raise ModelError(
            f"{type(module).__name__} cannot be exported with --dynamic-size.",
            f"{changed}, which an export of any size would leave out.",
            "export it once for each --image-size.",
        )
    made = proven_module(rewriting)
    assert isinstance(made, ViT)
    patch = module.config.patch_size
    example = torch.zeros(1, image.channels, 2 * patch, 3 * patch)  # torch.export specialises a single row or column
    free = {2: patch * torch.export.Dim(ROWS), 3: patch * torch.export.Dim(COLUMNS)}
    vit = DynamicSizeViT(made)
    scalars = rewriting.scalars()
    model = trace(vit, (example,), static_batch=rewriting.static_batch, free_axes=free, scalars=scalars)
    return name_patch_axes(model), replace(image, multiple_of=patch)


def _changed(module: ViT) -> str:
    """What of the ViT's own steps is another's; empty where nothing is."""
    kind = type(module)
    methods = [name for name in ("forward", "classify") if getattr(kind, name) is not getattr(ViT, name)]
    methods += [name for name in ("forward", "classify") if name in vars(module)]
    if methods:
        return f"its {methods[0]} is not that of our ViT"
    return "it has hooks" if any(getattr(module, name) for name in HOOKS) else ""


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
