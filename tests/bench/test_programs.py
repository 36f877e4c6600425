"""The models that a benchmark compares, by program."""

from __future__ import annotations

import pytest
from infsa_models import zoo

from infsa_deploy.bench.programs import build
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import UsageError
from infsa_deploy.export.sources import load_reference


@pytest.mark.parametrize(
    "source", [ModelSource(model="digits_linear"), ModelSource(), ModelSource(model="digits_pure")]
)
def test_pure_is_the_model_of_the_zoo_and_can_be_built_again(source):
    built = build(source, "pure")
    assert built.source == ModelSource(model="digits_pure", image_size=zoo.entry("digits_pure").config.image_size)
    assert load_reference(built.source).module.config == built.module.config


def test_pure_has_the_size_asked_for():
    side = 2 * zoo.entry("digits_linear").config.image_size[0]
    built = build(ModelSource(model="digits_linear", image_size=(side, side), power_iterations=3), "pure")
    assert (built.image.height, built.image.width) == (side, side)
    assert built.module.config.variant == "pure"


def test_no_pure_model_of_a_size_that_the_zoo_lacks(checkpoint):
    with pytest.raises(UsageError, match="there is no pure model of the same size"):
        build(ModelSource(weights=str(checkpoint("linear"))), "pure")


@pytest.mark.parametrize("program", ["softmax", "linformer", "performer"])
def test_baselines_have_the_size_of_the_reference(program):
    reference, built = (build(ModelSource(model="digits_linear"), which) for which in ("reference", program))
    assert built.image == reference.image
    assert built.module.config.embed_dim == reference.module.config.embed_dim
