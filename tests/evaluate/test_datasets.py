"""Folders of images in the usual layouts, and what is wrong with some."""

from __future__ import annotations

import numpy as np
import pytest
from infsa_models import digits
from PIL import Image

from infsa_deploy.errors import UsageError
from infsa_deploy.evaluate.datasets import DataSource, open_dataset

CLASSES = ("cat", "dog", "owl")


@pytest.fixture
def folder(tmp_path):
    """Write images, by path in the folder, and return it."""

    def make(*names: str):
        root = tmp_path / "data"
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.zeros((4, 4), np.uint8)).save(root / name)
        return root

    return make


def labels(source, classes=CLASSES):
    return {sample.name: sample.label for sample in open_dataset(source, classes)}


def test_class_folders(folder):
    root = folder("owl/a.png", "cat/deep/b.jpg", "cat/c.png")
    (root / "notes.txt").write_text("no image")
    assert labels(DataSource(str(root))) == {"cat/c.png": 0, "cat/deep/b.jpg": 0, "owl/a.png": 2}


def test_synset_folders(folder, tmp_path):
    root, synsets = folder("n02/a.png", "n01/b.png"), tmp_path / "synsets.txt"
    synsets.write_text("n01 cat, tabby\nn02 dog\n\nn03 owl\n")
    assert labels(DataSource(str(root), synsets=synsets)) == {"n01/b.png": 0, "n02/a.png": 1}
    synsets.write_text("n01 cat\n")
    with pytest.raises(UsageError, match="the model has 3"):
        labels(DataSource(str(root), synsets=synsets))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("val.csv", "ImageId,PredictionString\na,n02 1 2 3 4\nb,n01 1 1 2 2 n01 3 3 4 4\n"),
        ("val.txt", "a.png 1\nb.png 0\n"),
        ("val.txt", "a dog\nb cat\n"),
    ],
)
def test_flat_folder_with_labels(name, text, folder, tmp_path):
    root, synsets, file = folder("a.png", "b.png"), tmp_path / "synsets.txt", tmp_path / name
    synsets.write_text("n01 cat\nn02 dog\nn03 owl\n")
    file.write_text(text)
    assert labels(DataSource(str(root), synsets=synsets, labels=file)) == {"a.png": 1, "b.png": 0}


def test_flat_folder_without_labels(folder):
    assert labels(DataSource(str(folder("a.png")))) == {"a.png": None}


def test_unnamed_classes_take_folders_in_order(folder):
    root = folder("x/a.png", "y/b.png")
    assert labels(DataSource(str(root)), ("class 0", "class 1")) == {"x/a.png": 0, "y/b.png": 1}
    with pytest.raises(UsageError, match="2 of 2 class folders"):
        labels(DataSource(str(root)), ("class 0", "class 1", "class 2"))


def test_what_does_not_fit(folder, tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        labels(DataSource("nowhere"))
    root = folder("cat/a.png", "bird/b.png")
    with pytest.raises(UsageError, match="1 of 2 class folders are no class of the model: bird"):
        labels(DataSource(str(root)))
    file = tmp_path / "labels.txt"
    file.write_text("a cat\n")
    with pytest.raises(UsageError, match=r"no line for b\.png"):
        labels(DataSource(str(root), labels=file))
    file.write_text("a cat\nb crow\n")
    with pytest.raises(UsageError, match="crow"):
        labels(DataSource(str(root), labels=file))
    folder("loose.png")
    with pytest.raises(UsageError, match="beside folders"):
        labels(DataSource(str(root)))


def test_boxes_and_limit(folder, tmp_path):
    root = folder(*(f"cat/{i}.png" for i in range(9)))
    (tmp_path / "boxes").mkdir()
    (tmp_path / "boxes" / "4.xml").write_text(
        "<annotation><object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>3</ymax></bndbox></object></annotation>"
    )
    samples = open_dataset(DataSource(str(root), boxes=tmp_path / "boxes", limit=3), CLASSES)
    assert [(s.name, s.boxes) for s in samples] == [
        ("cat/0.png", None),
        ("cat/4.png", ((0, 0, 2, 3),)),
        ("cat/8.png", None),
    ]


def test_images_of_one_name_have_no_boxes_of_their_own(folder, tmp_path):
    root = folder("cat/1.png", "dog/1.png", "owl/2.png")
    assert labels(DataSource(str(root))) == {"cat/1.png": 0, "dog/1.png": 1, "owl/2.png": 2}
    (tmp_path / "labels.txt").write_text("1 cat\n2 owl\n")
    for source in (DataSource(str(root), labels=tmp_path / "labels.txt"), DataSource(str(root), boxes=tmp_path)):
        with pytest.raises(UsageError, match=r"2 images in .* have the name 1"):
            labels(source)


def test_the_zoo():
    samples = open_dataset(DataSource("zoo", limit=5), digits.CLASS_NAMES)
    test = digits.test_set(5)
    assert [sample.label for sample in samples] == test.labels.tolist()
    assert [sample.boxes for sample in samples] == [(tuple(box),) for box in test.boxes.tolist()]
    np.testing.assert_array_equal(samples[3].read()[..., 0] * 255, test.images[3])
    with pytest.raises(UsageError, match="digits"):
        open_dataset(DataSource("zoo"), CLASSES)
