"""Naming a model in each of the ways there are, and getting each wrong."""

from __future__ import annotations

import pytest
import torch

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.sources import load_reference

HERE = "tests.export.authors_attention"


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_the_default_of_a_variant_is_its_trained_model(variant):
    reference = load_reference(ModelSource(variant=variant))
    assert (reference.name, reference.variant) == (f"digits_{variant}", variant)
    assert reference.classes == tuple("0123456789")


def test_image_size_and_series_depth():
    reference = load_reference(ModelSource(model="digits_pure", image_size=(32, 48), hops=3))
    assert (reference.image.height, reference.image.width) == (32, 48)
    assert reference.architecture["hops"] == 3


def test_a_checkpoint_names_itself(golden):
    path = golden / "torchvision_vit_pure_infsa.safetensors"
    reference = load_reference(ModelSource(weights=str(path)))
    assert (reference.name, reference.variant) == (path.stem, "pure")
    assert reference.classes[:2] == ("class 0", "class 1")


def test_a_factory():
    reference = load_reference(ModelSource(module=f"{HERE}:factory", image_size=(32, 40), hops=2))
    assert reference.variant == "linear"
    assert (reference.image.channels, reference.image.height, reference.image.width) == (3, 32, 40)
    assert reference.module.second.hops == 2
    assert reference.module(torch.zeros(1, 3, 32, 40)).shape == (1, len(reference.classes))


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ({"variant": "cubic"}, UsageError, "'cubic' is unknown"),
        ({"model": "digits_lineal"}, UsageError, "digits_linear"),
        ({"model": "digits_pure", "variant": "linear"}, UsageError, "is not linear"),
        ({"model": "digits_linear", "image_size": (60, 64)}, UsageError, "56x64 or 64x64"),
        ({"model": "digits_pure", "hops": 0}, UsageError, "hops"),
        ({"module": "no colon"}, UsageError, "package.module:factory"),
        ({"module": "no_such_package:factory"}, UsageError, "no_such_package"),
        ({"module": f"{HERE}:missing"}, ModelError, "missing"),
        ({"module": f"{HERE}:broken"}, ModelError, "another planet"),
        ({"module": f"{HERE}:not_a_module"}, ModelError, "returned a str"),
        ({"weights": "nowhere.safetensors"}, ModelError, "nowhere.safetensors"),
    ],
)
def test_bad_requests(source, kind, message):
    with pytest.raises(kind) as caught:
        load_reference(ModelSource(**source))
    assert message in str(caught.value)
