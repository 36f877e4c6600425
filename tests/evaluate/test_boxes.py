"""Annotation files, and boxes on their way through the crop."""

from __future__ import annotations

import json

import numpy as np
import pytest

from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.evaluate.boxes import as_seen, check_inside, read_boxes
from infsa_deploy.records.model import ImageSpec

VOC = """<annotation><object><name>cat</name><bndbox>
<xmin>1</xmin><ymin>11</ymin><xmax>20</xmax><ymax>30</ymax></bndbox></object>{more}</annotation>"""


def test_voc(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.xml").write_text(VOC.format(more=""))
    (tmp_path / "b.xml").write_text("<annotation/>")
    assert read_boxes(tmp_path) == {"a": ((0, 10, 20, 30),), "b": ()}


def test_coco(tmp_path):
    path = tmp_path / "instances.json"
    annotations = [
        {"image_id": 7, "bbox": [0, 10, 20, 20], "iscrowd": 0},
        {"image_id": 7, "bbox": [1.5, 2, 3, 4]},
        {"image_id": 7, "bbox": [0, 0, 5, 5], "iscrowd": 1},
    ]
    images = [{"id": 7, "file_name": "val/a.jpg"}, {"id": 8, "file_name": "b.jpg"}]
    path.write_text(json.dumps({"images": images, "annotations": annotations}))
    assert read_boxes(path) == {"a": ((0, 10, 20, 30), (1.5, 2, 4.5, 6))}


def test_annotations_of_one_name(tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.xml").write_text(VOC.format(more=""))
    with pytest.raises(UsageError, match=r"2 annotations in .* have the name 1"):
        read_boxes(tmp_path)
    images = [{"id": 1, "file_name": "cat/1.jpg"}, {"id": 2, "file_name": "dog/1.png"}]
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "annotations": []}))
    with pytest.raises(UsageError, match=r"2 images in .* have the name 1"):
        read_boxes(tmp_path / "coco.json")


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.xml", "<annotation><object>", ModelError, "a.xml"),
        ("a.xml", VOC.replace("<xmax>20</xmax>", "").format(more=""), ModelError, "a.xml"),
        ("a.xml", VOC.replace("<xmax>20", "<xmax>0").format(more=""), ModelError, "no area"),
        ("a.json", "{}", ModelError, "COCO"),
        ("a.json", "[", ModelError, "COCO"),
        ("a.txt", "", UsageError, "no annotations"),
    ],
)
def test_bad_files(name, content, error, message, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(error, match=message):
        read_boxes(path if name.endswith(".json") else tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_boxes(tmp_path / "nowhere")


def test_a_box_outside_its_image():
    check_inside([(0, 0, 20, 10)], height=10, width=20)
    for box in ((0, 0, 20.5, 10), (0, 0, 20, 11), (-1, 0, 20, 10)):
        with pytest.raises(ModelError, match="20 wide and 10 high"):
            check_inside([box], height=10, width=20)


def test_boxes_follow_the_crop():
    spec = ImageSpec(1, 32, 32, (0.0,), (1.0,))
    # 64 x 128: the middle 64 x 64 is seen, at half the size.
    assert as_seen([(32, 0, 96, 64)], 64, 128, spec) == pytest.approx(np.array([[0, 0, 32, 32]]))
    assert as_seen([(40, 8, 48, 16)], 64, 128, spec) == pytest.approx(np.array([[4, 4, 8, 8]]))
    assert as_seen([(0, 0, 40, 64)], 64, 128, spec) == pytest.approx(np.array([[0, 0, 4, 32]]))  # cut at the edge
    assert as_seen([(0, 0, 32, 64)], 64, 128, spec).shape == (0, 4)  # all of it outside the crop
    assert as_seen([], 64, 128, spec).shape == (0, 4)
    close = ImageSpec(1, 32, 32, (0.0,), (1.0,), crop_fraction=0.5)
    assert as_seen([(48, 16, 80, 48)], 64, 128, close) == pytest.approx(np.array([[0, 0, 32, 32]]))
