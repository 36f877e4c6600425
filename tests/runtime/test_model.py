"""A loaded model as a program uses it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

import infsa_deploy
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.runtime import model as model_module
from infsa_deploy.runtime.sessions.ort import OrtSession


@pytest.fixture
def pictures(rng) -> list[np.ndarray]:
    """Seven pictures, no two of one size."""
    return [rng.integers(0, 256, (20 + 9 * n, 70 - 8 * n, 3), dtype=np.uint8) for n in range(7)]


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes that ONNX Runtime was called with."""
    shapes, run = [], OrtSession.__call__

    def counted(session, feeds):
        shapes.append(feeds["image"].shape)
        return run(session, feeds)

    monkeypatch.setattr(OrtSession, "__call__", counted)
    return shapes


def test_predictions_are_those_of_the_arrays(tiny, export, pictures):
    path, _ = export(tiny("linear"))
    with infsa_deploy.load(path, threads=1) as model:
        together = model.predict(pictures, top=5)
        for index, picture in enumerate(pictures):
            array = model.preprocess(picture)
            assert array.shape == (1, 3, 16, 24)
            logits = model({"image": array})["logits"][0].astype(np.float64)
            powers = dict(zip(model.metadata.classes, np.exp(logits) / np.exp(logits).sum(), strict=True))
            found = together[index]
            assert found.image == f"image {index}"
            assert sorted(found.scores, reverse=True) == list(found.scores)
            for name, score in zip(found.classes, found.scores, strict=True):
                assert score == pytest.approx(powers[name], rel=1e-4)  # 9 bits above fp32's rounding of a logit near 1


def test_every_form_of_a_picture(tiny, export, pictures, tmp_path):
    path, _ = export(tiny("linear"))
    file = tmp_path / "a.png"
    Image.fromarray(pictures[0]).save(file)
    with infsa_deploy.load(str(path), threads=1) as model:
        forms = [file, str(file), file.read_bytes(), Image.open(file), pictures[0]]
        found = model.predict(forms)
        alone = [model.predict([form])[0] for form in forms]
    assert [prediction.image for prediction in found] == [str(file), str(file), "image 2", "image 3", "image 4"]
    assert len({prediction.scores for prediction in alone}) == 1
    assert {prediction.classes for prediction in found} == {alone[0].classes}


@pytest.mark.parametrize(("batch", "shapes"), [(None, [4, 3]), (3, [3, 3, 3])])
def test_batches(tiny, export, pictures, calls, monkeypatch, batch, shapes):
    monkeypatch.setattr(model_module, "BATCH_PIXELS", 4 * 16 * 24)
    path, _ = export(tiny("linear"), static_batch=batch)
    model = infsa_deploy.load(path, threads=1)
    together = model.predict(pictures)
    assert [shape[0] for shape in calls] == shapes
    for alone, shared in zip((model.predict([picture])[0] for picture in pictures), together, strict=True):
        assert alone.classes == shared.classes
    assert model.predict([]) == []


def test_a_model_of_any_size_batches_pictures_of_one_size(tiny, export, calls, rng, monkeypatch):
    path, _ = export(tiny("linear"), dynamic_size=True)
    sizes = [(16, 24), (32, 40), (17, 23), (32, 40), (16, 25)]  # to the nearest multiples of 8: two sizes
    pictures = [rng.random((*size, 3), dtype=np.float32) for size in sizes]
    model = infsa_deploy.load(path, threads=1)
    together = model.predict(pictures, top=1)
    assert calls == [(3, 3, 16, 24), (2, 3, 32, 40)]
    assert [prediction.image for prediction in together] == [f"image {index}" for index in range(5)]
    assert [p.classes for p in together] == [model.predict([picture], top=1)[0].classes for picture in pictures]
    failures: list[tuple[str, str]] = []
    left = model.predict([b"text", *pictures], top=1, failed=lambda name, error: failures.append((name, error.what)))
    assert failures == [("image 0", "image 0 is no image.")]
    assert [found.scores for found in left] == [found.scores for found in together]


def test_threads(tiny, export, pictures):
    path, _ = export(tiny("pure"))
    with infsa_deploy.load(path, threads=1) as model, ThreadPoolExecutor(8) as threads:
        expected = [model.predict([picture]) for picture in pictures]
        found = list(threads.map(lambda picture: model.predict([picture]), pictures * 5))
    assert found == expected * 5


def test_a_closed_model(tiny, export, pictures):
    path, _ = export(tiny("linear"))
    with infsa_deploy.load(path, threads=1) as model:
        pass
    with pytest.raises(UsageError, match="closed"):
        model.predict(pictures)
    model.close()


def test_errors_name_the_picture(tiny, export, pictures, tmp_path):
    path, _ = export(tiny("linear"))
    (tmp_path / "empty.png").touch()
    model = infsa_deploy.load(path, threads=1)
    for bad, message in ((b"text", "image 1 is no image"), (tmp_path / "empty.png", r"empty\.png is empty")):
        with pytest.raises(ModelError, match=message):
            model.predict([pictures[0], bad])
    for one in (pictures[0], tmp_path / "empty.png", b"text", Image.fromarray(pictures[0])):
        with pytest.raises(UsageError, match="list of images"):
            model.predict(one)
    assert len(model.predict(np.stack([pictures[0], pictures[0]]))) == 2
    with pytest.raises(UsageError, match="0 contexts"):
        infsa_deploy.load(path, contexts=0)
    with pytest.raises(ModelError, match="does not exist"):
        infsa_deploy.load(tmp_path / "missing.engine")
