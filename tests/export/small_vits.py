"""Our own networks, small, as traced graphs: what the passes are tried on after the cases written for them."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir
import torch
from infsa_models.vit import ViT, ViTConfig

from infsa_deploy.export.rewrite.deployable import to_deployable, to_reference
from infsa_deploy.export.trace import trace
from infsa_deploy.graph.passes.clean import fold_constants

TOKENS, DEPTH = 17, 2  # one block that stays whole, and the last
# Only the order of sums can differ. Each dot product of length K is off by at most K eps times the sum of its terms'
# magnitudes in either order; the networks here are a few such layers deep, K <= 128, and normalised in between, so 1e-5
# of the largest logit (84 eps of float32) holds with room and any wrong row breaks it.
RELATIVE = 1e-5


def small_vit(variant: str) -> ViT:
    """32x32 images in 16 patches; E 32, 4 heads, MLP 128, 10 classes."""
    torch.manual_seed(0)
    return ViT(ViTConfig(variant, (32, 32), 8, 3, 32, DEPTH, 4, 128, 10)).eval()


def traced(variant: str, deployable: bool = True) -> ir.Model:
    """A fresh copy of a network's graph, before the passes on tokens; with custom ops where it is deployable."""
    return ir.from_proto(_traced(variant, deployable))


@functools.cache
def _traced(variant: str, deployable: bool) -> onnx.ModelProto:
    swap = to_deployable if deployable else to_reference
    return ir.to_proto(fold_constants(trace(swap(small_vit(variant)), (torch.zeros(1, 3, 32, 32),))))
