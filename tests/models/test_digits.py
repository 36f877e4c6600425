"""The digits task: the same images everywhere, and no test digit in training."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from infsa_models import digits, zoo
from PIL import Image


def digest(data: digits.DigitImages) -> str:
    content = b"".join(array.tobytes() for array in (data.images, data.labels, data.boxes))
    return hashlib.sha256(content).hexdigest()


def test_the_test_images_never_change():
    data = digits.test_set(1000)
    assert data.images.shape == (1000, 64, 64)
    assert (data.images.dtype, data.labels.dtype, data.boxes.dtype) == (np.uint8, np.int64, np.int64)
    assert digest(data) == "0487d50d95c03d20cc27bada9c1e417cef0d4f2fd6b6dc75dbc906258702b572"
    assert digest(digits.test_set(1000)) == digest(data)


def test_fewer_test_images_are_the_first_ones():
    few, many = digits.test_set(7), digits.test_set(20)
    assert np.array_equal(few.images, many.images[:7])
    assert np.array_equal(few.boxes, many.boxes[:7])


def test_training_images_follow_the_generator_they_are_given():
    first, again = (digits.train_batch(np.random.RandomState(3), 5) for _ in range(2))
    assert digest(first) == digest(again)
    assert digest(first) != digest(digits.train_batch(np.random.RandomState(4), 5))


def test_source_digits_are_split_without_overlap():
    split = digits.source_split()
    together = np.concatenate([split["train"], split["validation"], split["test"]])
    assert sorted(together) == list(range(1797))
    assert {part: len(indices) for part, indices in split.items()} == {
        "train": 1257,
        "validation": 180,
        "test": 360,
    }
    images, _ = digits._source()
    trained = {images[index].tobytes() for index in split["train"]}
    assert not any(images[index].tobytes() in trained for index in split["test"])


@pytest.mark.parametrize(
    ("part", "draw"),
    [
        ("test", lambda: digits.test_set(40)),
        ("validation", lambda: digits.validation_set(40)),
        ("train", lambda: digits.train_batch(np.random.RandomState(0), 40)),
    ],
)
def test_images_hold_only_digits_of_their_own_part(part, draw, monkeypatch):
    """With every other part's digits blanked out, the images come out the same."""
    expected = digest(draw())
    images, labels = digits._source()
    blanked = np.zeros_like(images)
    blanked[digits.source_split()[part]] = images[digits.source_split()[part]]
    monkeypatch.setattr(digits, "_source", lambda: (blanked, labels))
    assert digest(draw()) == expected


def test_the_box_holds_the_digit_of_the_label():
    data = digits.test_set(50)
    images, labels = digits._source()
    ours = digits.source_split()["test"]
    templates = images[ours].reshape(len(ours), 64).astype(float)
    templates -= templates.mean(axis=1, keepdims=True)
    templates /= np.linalg.norm(templates, axis=1, keepdims=True)
    for image, label, (x0, y0, x1, y1) in zip(data.images, data.labels, data.boxes, strict=True):
        assert (x1 - x0, y1 - y0) == (8, 8)
        assert x0 % 8 == y0 % 8 == 0
        cell = image[y0:y1, x0:x1].astype(float).ravel()
        similarity = templates @ (cell - cell.mean()) / np.linalg.norm(cell - cell.mean())
        assert labels[ours[similarity.argmax()]] == label
        # The cell is the digit and a little noise, so that they correlate; a scrambled digit would not.
        assert similarity.max() > 0.9


def test_every_digit_and_every_cell_occurs():
    data = digits.test_set(1000)
    counts = np.bincount(data.labels, minlength=10)
    assert counts.min() >= 60
    assert len(np.unique(data.boxes, axis=0)) == 64


def test_normalized_pixels():
    image = np.full((1, 64, 64), 51, np.uint8)
    normalized = digits.normalize(image)
    assert (normalized.shape, normalized.dtype) == ((1, 1, 64, 64), np.float32)
    assert normalized[0, 0, 0, 0] == pytest.approx((0.2 - digits.MEAN) / digits.STD, rel=1e-6)


def test_a_shift_moves_the_digit_by_whole_pixels():
    digit = np.arange(1, 65).reshape(8, 8)
    shifted = digits._shifted(digit, 1, -1)
    assert np.array_equal(shifted[1:, :-1], digit[:-1, 1:])
    assert not shifted[0].any()
    assert not shifted[:, -1].any()
    assert np.array_equal(digits._shifted(digit, 0, 0), digit)


def test_samples_are_test_images():
    data = digits.test_set(1000)
    for digit in range(10):
        with Image.open(zoo.SAMPLES_FOLDER / f"digit_{digit}.png") as file:
            sample = np.asarray(file)
        matches = np.flatnonzero((data.images == sample).all(axis=(1, 2)))
        assert [data.labels[index] for index in matches] == [digit]


def test_the_source_is_scikit_learns():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    theirs = datasets.load_digits()
    images, labels = digits._source()
    assert np.array_equal(images, theirs.images)
    assert np.array_equal(labels, theirs.target)


def test_importing_the_task_loads_neither_torch_nor_scikit_learn():
    program = "import sys, infsa_models.digits; print([m for m in ('torch', 'sklearn') if m in sys.modules])"
    models = str(zoo.WEIGHTS_FOLDER.parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": models},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
