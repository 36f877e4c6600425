"""Building what runs: the reference model, or another attention in a ViT of the same size."""

from __future__ import annotations

from dataclasses import replace

import torch
from infsa_models import baselines, zoo
from infsa_models.vit import ViT, ViTConfig

from infsa_deploy.bench.contenders import Program
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import UsageError
from infsa_deploy.export.sources import Reference, load_reference

SEED = 0


def build(source: ModelSource, program: Program) -> Reference:
    """The model of `program` at the size of `source`.

    `pure` is the zoo's, which can be exported from its `source`. The others but the reference are untrained, and their
    `source` is only what their sizes are from.

    Raises:
        UsageError, ModelError: as load_reference; and UsageError where there is no counterpart of the same size.
    """
    reference = load_reference(source)
    if program == "reference":
        return reference
    if not isinstance(reference.module, ViT):
        why = f"{type(reference.module).__name__} is not built from sizes that we know."
        raise _no_counterpart(program, why)
    config = reference.module.config
    if program == "pure":
        return load_reference(ModelSource(model=_pure_model_of_the_zoo(config), image_size=config.image_size))
    config = replace(config, variant="softmax", hops=1, power_iterations=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = ViT(config) if program == "softmax" else baselines.build(program, config)
        return replace(reference, module=module.eval())


def _pure_model_of_the_zoo(config: ViTConfig) -> str:
    """The name of the one that has the sizes of `config`, but for its image's."""
    wanted = {**config.to_dict(), "variant": "pure", "hops": 1, "power_iterations": 1}
    for name, entry in zoo.ZOO.items():
        if {**entry.config.to_dict(), "image_size": wanted["image_size"]} == wanted:
            return name
    raise _no_counterpart("pure", "the zoo holds none.")


def _no_counterpart(program: Program, why: str) -> UsageError:
    return UsageError(f"there is no {program} model of the same size.", why, "compare with a model of the zoo.")
