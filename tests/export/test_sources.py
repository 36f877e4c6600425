"""Naming a model in each of the ways there are, and getting each wrong."""

from __future__ import annotations

import shutil

import pytest
import torch

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.rewrite.deployable import to_deployable, to_reference
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


def test_a_folder_names_itself(golden, tmp_path):
    folder = tmp_path / "my.vit"
    folder.mkdir()
    shutil.copy(golden / "torchvision_vit_pure_infsa.safetensors", folder / "model.safetensors")
    assert load_reference(ModelSource(weights=str(folder))).name == "my.vit"


def test_a_model_nobody_named_is_named_by_its_source():
    assert load_reference(ModelSource()).source == ModelSource(model="digits_linear")
    assert load_reference(ModelSource(variant="pure")).source == ModelSource(model="digits_pure", variant="pure")


def test_a_factory():
    reference = load_reference(ModelSource(module=f"{HERE}:factory", image_size=(32, 40)))
    assert reference.variant == "linear"
    assert (reference.image.channels, reference.image.height, reference.image.width) == (3, 32, 40)
    assert reference.module(torch.zeros(1, 3, 32, 40)).shape == (1, len(reference.classes))


@pytest.mark.parametrize("depth", [{"hops": 3}, {"power_iterations": 2}, {"hops": 3, "power_iterations": 2}])
@pytest.mark.parametrize("rewrite", [to_deployable, to_reference])
def test_a_factory_whose_attention_knows_nothing_of_series(depth, rewrite):
    plain, deep = (ModelSource(module=f"{HERE}:factory", image_size=(32, 40), **more) for more in ({}, depth))
    module = load_reference(deep).module
    image = torch.randn(2, 3, 32, 40)
    with torch.no_grad():
        found, expected, shallow = (m(image) for m in (rewrite(module), module, load_reference(plain).module))
    torch.testing.assert_close(found, expected)
    assert (found - shallow).abs().max() > 100 * (found - expected).abs().max()


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
        ({"module": f"{HERE}:no_attention", "image_size": (32, 40)}, ModelError, "on an image of 3x32x40"),
        ({"module": f"{HERE}:no_attention", "hops": 2}, UsageError, "has no hops"),
        ({"module": f"{HERE}:factory", "weights": "a.safetensors"}, UsageError, "--weights cannot go with --module"),
        ({"module": f"{HERE}:factory", "variant": "pure", "model": "digits_pure"}, UsageError, "--model and --variant"),
        ({"model": "digits_pure", "heads": 2, "grid": (2, 3)}, UsageError, "--heads and --grid cannot go with a model"),
        ({"heads": 2}, UsageError, "it would be ignored"),
        ({"weights": "nowhere.safetensors"}, ModelError, "nowhere.safetensors"),
    ],
)
def test_bad_requests(source, kind, message):
    with pytest.raises(kind) as caught:
        load_reference(ModelSource(**source))
    assert message in str(caught.value)
