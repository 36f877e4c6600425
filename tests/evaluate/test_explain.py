"""Figures and raw maps of single images."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infsa_deploy.config import ExportConfig
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.evaluate.explain import LONGEST, explain, seen
from infsa_deploy.evaluate.model import open_classifier
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.runtime.pictures.preprocess import read_image
from tests.evaluate.conftest import SIDE, on_the_patch, picture


@pytest.fixture
def bright(tmp_path):
    path = tmp_path / "bright.png"
    Image.fromarray((picture(True)[..., 0] * 255).astype(np.uint8)).save(path)
    return path


def test_what_is_written(classifier, bright, tmp_path):
    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / bright.name
    twin.write_bytes(bright.read_bytes())
    found = explain(classifier(), [bright, twin], tmp_path / "out", layer="last")
    assert [item.predicted for item in found] == ["bright", "bright"]
    assert found[0].score == pytest.approx(0.9)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "bright.npy",
        "bright.png",
        "bright_2.npy",
        "bright_2.png",
    ]
    maps = np.load(found[0].maps)
    assert (maps.shape, maps.dtype) == ((1, 2, 8, 8), np.float32)
    np.testing.assert_array_equal(maps[0, 1], on_the_patch())


def test_the_heat_lies_where_the_map_says(classifier, bright, tmp_path):
    """Warm pixels (more red than blue) appear over the patch that the model reads, and nowhere when the map is 0."""

    def warm(heat) -> int:
        (item,) = explain(classifier(heat), [bright], tmp_path / "out", layer="0")
        pixels = np.asarray(Image.open(item.figure).convert("RGB")).astype(int)
        return int((pixels[..., 0] > pixels[..., 2] + 60)[:, : pixels.shape[1] * 4 // 5].sum())  # without the bar

    assert warm(on_the_patch) > 100
    assert warm(lambda _: np.zeros((8, 8))) == 0


def test_colour_and_normalisation_come_back(classifier, rng):
    model = classifier()
    image = dataclasses.replace(model.image, channels=3, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    pixels = rng.random((3, SIDE, SIDE)).astype(np.float32)
    normalised = (pixels - np.array(image.mean)[:, None, None]) / np.array(image.std)[:, None, None]
    back = seen(normalised.astype(np.float32), dataclasses.replace(model, image=image))
    assert back == pytest.approx(pixels.transpose(1, 2, 0), abs=1e-6)


def test_a_very_large_image(tiny, tmp_path):
    sizes = {"image_size": (4096, 4096), "patch_size": 16, "embed_dim": 8, "num_heads": 2, "mlp_dim": 8, "depth": 1}
    reference = tiny("linear", **sizes)
    path, model = tmp_path / "large.png", tmp_path / "m.onnx"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (4096, 4096), np.uint8)).save(path)
    export_reference(reference, model, ExportConfig(attention_maps=True))
    classifier = open_classifier(str(model), threads=1)
    (found,) = explain(classifier, [path], tmp_path / "out")
    maps = np.load(found.maps)
    assert maps.shape == (1, 2, 256, 256)
    assert np.isfinite(maps).all()
    assert maps.max() > 0
    shown = seen(np.zeros((3, 4096, 4096), np.float32), classifier)
    assert shown.shape == (LONGEST, LONGEST, 3)
    assert read_image(found.figure).ndim == 3


def test_an_image_is_not_replaced_by_its_figure(classifier, bright, tmp_path, monkeypatch):
    before = bright.read_bytes()
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path()):
        with pytest.raises(UsageError, match=r"bright\.png would be replaced"):
            explain(classifier(), [bright], folder)
    assert [path.name for path in tmp_path.iterdir()] == [bright.name]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bright.npy").symlink_to(bright)
    with pytest.raises(UsageError, match=r"bright\.npy would be replaced"):
        explain(classifier(), [bright], tmp_path / "out")
    assert bright.read_bytes() == before


def test_what_cannot_be_explained(classifier, bright, tmp_path):
    with pytest.raises(ModelError, match="--attention-maps"):
        explain(dataclasses.replace(classifier(), has_maps=False), [bright], tmp_path / "out")
    with pytest.raises(UsageError, match="layers 0 to 0"):
        explain(classifier(), [bright], tmp_path / "out", layer="4")
    with pytest.raises(ModelError, match="does not exist"):
        explain(classifier(), [tmp_path / "nowhere.png"], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
