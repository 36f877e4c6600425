"""Building what runs in PyTorch: the reference model, or another attention in a ViT of the same size."""

from __future__ import annotations

from dataclasses import replace

import torch
from infsa_models import baselines
from infsa_models.vit import ViT, ViTConfig
from torch import nn

from infsa_deploy.bench.contenders import Program
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import UsageError
from infsa_deploy.export.sources import load_reference
from infsa_deploy.records import ImageSpec

SEED = 0


def build(source: ModelSource, program: Program) -> tuple[nn.Module, ImageSpec]:
    """The module of `program` at the size of `source`, and its input. Others than the reference are untrained.

    Raises:
        UsageError, ModelError: as load_reference; and UsageError where a module of the user's own has no counterpart.
    """
    reference = load_reference(source)
    if program == "reference":
        return reference.module, reference.image
    if not isinstance(reference.module, ViT):
        raise UsageError(
            f"there is no {program} model of the same size.",
            f"{type(reference.module).__name__} is not built from sizes that we know.",
            "compare with a model of the zoo.",
        )
    config = replace(reference.module.config, variant="softmax", hops=1, power_iterations=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return _counterpart(config, program).eval(), reference.image


def _counterpart(config: ViTConfig, program: Program) -> nn.Module:
    return ViT(config) if program == "softmax" else baselines.build(program, config)
