"""The zoo: its names, sizes, determinism, and the accuracy of its trained models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from infsa_models import digits, zoo
from infsa_models.checkpoint import load_vit, load_weights, save_vit, weights_hash
from infsa_models.vit import ViT
from PIL import Image

from infsa_deploy.errors import ModelError, UsageError

TRAINED = ["digits_linear", "digits_pure", "digits_softmax"]
MILLION = 1_000_000


@pytest.mark.parametrize(
    ("name", "variant", "depth"),
    [
        ("infvit_linear_4l", "linear", 4),
        ("infvit_pure_4l", "pure", 4),
        ("vit_softmax_4l", "softmax", 4),
        ("infvit_linear_24l", "linear", 24),
        ("infvit_pure_24l", "pure", 24),
    ],
)
def test_full_size_models_have_the_papers_sizes(name, variant, depth):
    config = zoo.ZOO[name].config
    assert (config.variant, config.depth, config.image_size) == (variant, depth, (224, 224))
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in ViT(config).parameters())
    block = 12 * 1024**2 + 13 * 1024 + (variant != "softmax")
    outside = 1024 * 3 * 16**2 + 1024 + 1024 + 197 * 1024 + 2 * 1024 + 1024 * 1000 + 1000
    assert parameters == depth * block + outside


@pytest.mark.parametrize("name", zoo.ZOO)
def test_entries_fit_their_configuration(name):
    entry = zoo.ZOO[name]
    assert len(entry.class_names) == len(set(entry.class_names)) == entry.config.num_classes
    assert len(entry.mean) == len(entry.std) == entry.config.in_channels
    assert 0 < entry.crop_fraction <= 1
    assert ("untrained" in entry.about) == (entry.weights is None)


def test_each_variant_has_a_trained_default():
    assert {zoo.ZOO[name].config.variant: name for name in TRAINED} == zoo.DEFAULT_MODEL


def test_untrained_weights_are_always_the_same_and_leave_the_random_state_alone(monkeypatch, tiny_config):
    entry = zoo.ZOO["infvit_pure_4l"]
    tiny = zoo.ZooEntry(tiny_config, None, entry.class_names[:5], entry.mean, entry.std, 1.0, "untrained")
    monkeypatch.setitem(zoo.ZOO, "tiny", tiny)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = zoo.build("tiny")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert weights_hash(zoo.build("tiny")) == weights_hash(first)
    assert not first.training


def test_a_full_size_model_classifies():
    model = zoo.build("infvit_linear_4l", image_size=(64, 96), power_iterations=2)
    assert model.config.power_iterations == 2
    with torch.inference_mode():
        logits = model(torch.randn(2, 3, 64, 96))
    assert logits.shape == (2, 1000)
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.01


@pytest.mark.parametrize(("name", "near"), [("digits_liner", "digits_linear"), ("infvit_pure", "infvit_pure_4l")])
def test_unknown_names_are_answered_with_near_ones(name, near):
    with pytest.raises(UsageError, match=f"no model '{name}'") as caught:
        zoo.build(name)
    assert near in caught.value.fix
    assert "vit_softmax_4l" in caught.value.why


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("digits_pure", {"hops": 0}, "hops 0"),
        ("digits_linear", {"power_iterations": 0}, "0 power iterations"),
        ("digits_linear", {"hops": 2}, "linear has no hops"),
        ("digits_softmax", {"hops": 2}, "softmax has no hops"),
        ("digits_pure", {"image_size": (63, 64)}, "63x64"),
    ],
)
def test_impossible_requests(name, arguments, message):
    with pytest.raises(UsageError, match=message):
        zoo.build(name, **arguments)


def test_other_weights_must_fit(tmp_path, golden):
    trained = zoo.build("digits_pure")
    with torch.no_grad():
        trained.head.bias.add_(1.0)
    save_vit(trained, tmp_path / "mine.safetensors")
    mine = zoo.build("digits_pure", weights=tmp_path / "mine.safetensors", hops=3)
    assert mine.config.hops == 3
    assert weights_hash(mine) == weights_hash(trained)
    with pytest.raises(UsageError, match="variant linear contradicts"):
        zoo.build("digits_linear", weights=tmp_path / "mine.safetensors")
    with pytest.raises(ModelError, match="does not fit the model"):
        zoo.build("digits_linear", weights=golden / "torchvision_vit_linear_infsa.safetensors")


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_name_the_test_digits(name):
    model = zoo.build(name)
    data = digits.test_set(1000)
    with torch.inference_mode():
        predicted = model(torch.from_numpy(digits.normalize(data.images))).argmax(dim=1).numpy()
    accuracy = float((predicted == data.labels).mean())
    assert accuracy >= 0.95
    path = zoo.WEIGHTS_FOLDER / zoo.ZOO[name].weights
    assert path.stat().st_size < 2 * MILLION
    _, metadata = load_weights(path)
    # Another machine may round logits otherwise, and so decide a close image otherwise.
    assert accuracy == pytest.approx(metadata["test_accuracy"], abs=0.002)
    assert load_vit(path).config == model.config


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_read_the_samples(name):
    samples = [np.asarray(Image.open(zoo.SAMPLES_FOLDER / f"digit_{digit}.png")) for digit in range(10)]
    with torch.inference_mode():
        logits = zoo.build(name)(torch.from_numpy(digits.normalize(np.stack(samples))))
    assert logits.argmax(dim=1).tolist() == list(range(10))


@pytest.mark.parametrize("name", TRAINED)
def test_the_card_states_the_measured_accuracy(name):
    _, metadata = load_weights(zoo.WEIGHTS_FOLDER / f"{name}.safetensors")
    card = (zoo.WEIGHTS_FOLDER / "README.md").read_text()
    row = next(line for line in card.splitlines() if line.startswith(f"| `{name}` |"))
    assert f"{100 * metadata['test_accuracy']:.1f} %" in row
    assert json.dumps(metadata["recipe"]["steps"]) in card
