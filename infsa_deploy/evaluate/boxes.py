"""Where objects lie: boxes from annotation files, and what a model sees of them.

A box is x0 y0 x1 y1 in pixels of the picture, the right and bottom edge not included.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.records.codec import parse_json
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.pictures.preprocess import crop_box

Box = tuple[float, float, float, float]
Boxes = npt.NDArray[np.float64]


def read_boxes(path: Path) -> Mapping[str, tuple[Box, ...]]:
    """Boxes by image name: the file's stem.

    Args:
        path: a folder of Pascal VOC files (one .xml an image, in subfolders too), or a COCO .json (instances; crowds
            are left out).

    Raises:
        UsageError: there is nothing of either kind, or two annotations have one name.
        ModelError: a file cannot be read, or a box has no area.
    """
    if path.is_dir():
        files = sorted(path.rglob("*.xml"))
        if not files:
            raise UsageError(f"{path} holds no annotations.", "no file in it ends in .xml.", "give Pascal VOC or COCO.")
        check_distinct([file.stem for file in files], "annotations", path)
        found = {file.stem: _read_voc(file) for file in files}
    elif path.is_file():
        found = _read_coco(path)
    else:
        raise UsageError(f"{path} does not exist.", "", "give a folder of Pascal VOC files, or a COCO .json file.")
    for name, boxes in found.items():
        for box in boxes:
            if not (box[0] < box[2] and box[1] < box[3]):
                raise ModelError(f"{path}: a box of {name} has no area.", f"it is {box}.", "correct the annotation.")
    return found


def check_distinct(stems: Sequence[str], what: str, path: Path) -> None:
    """Raise UsageError where two files, whose suffixes and folders do not count, have one name."""
    for name, count in Counter(stems).most_common(1):
        if count > 1:
            why = "labels and boxes are found by an image's name alone, without its folder and suffix."
            raise UsageError(f"{count} {what} in {path} have the name {name}.", why, "give each a name of its own.")


def _read_voc(path: Path) -> tuple[Box, ...]:
    """VOC counts pixels from 1 and includes the last; http://host.robots.ox.ac.uk/pascal/VOC, development kit."""
    try:
        boxes = [
            {edge: float(box.findtext(edge, "")) for edge in ("xmin", "ymin", "xmax", "ymax")}
            for box in ET.parse(path).getroot().iterfind("object/bndbox")
        ]
    except (ET.ParseError, ValueError, OSError) as error:
        raise ModelError(f"{path} is no Pascal VOC annotation.", str(error), "correct or remove the file.") from error
    return tuple((box["xmin"] - 1, box["ymin"] - 1, box["xmax"], box["ymax"]) for box in boxes)


def _read_coco(path: Path) -> dict[str, tuple[Box, ...]]:
    """COCO counts from 0 and gives x, y, width, height; https://cocodataset.org/#format-data."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        names = {image["id"]: Path(image["file_name"]).stem for image in content["images"]}
        check_distinct(list(names.values()), "images", path)
        boxes: dict[str, list[Box]] = defaultdict(list)
        for annotation in content["annotations"]:
            if not annotation.get("iscrowd"):
                x, y, width, height = map(float, annotation["bbox"])
                boxes[names[annotation["image_id"]]].append((x, y, x + width, y + height))
    except (ValueError, KeyError, TypeError, OSError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ModelError(f"{path} is no COCO instances file.", why, "give images and annotations with bbox.") from error
    return {name: tuple(found) for name, found in boxes.items()}


def check_inside(boxes: Sequence[Box], height: int, width: int) -> None:
    """Raise ModelError when a box reaches out of the picture."""
    for x0, y0, x1, y1 in boxes:
        if x0 < 0 or y0 < 0 or x1 > width or y1 > height:
            raise ModelError(
                f"its box {x0:g} {y0:g} {x1:g} {y1:g} reaches out of the image.",
                f"the image is {width} wide and {height} high.",
                "correct the annotation.",
            )


def as_seen(boxes: Sequence[Box], height: int, width: int, spec: ImageSpec) -> Boxes:
    """Boxes [boxes, 4] in pixels of the model's input, cut to it; those the crop leaves out are dropped."""
    left, top, right, bottom = crop_box(height, width, spec)
    across, down = spec.width / (right - left), spec.height / (bottom - top)
    moved = (np.asarray(boxes, np.float64).reshape(-1, 4) - [left, top, left, top]) * [across, down, across, down]
    cut = np.clip(moved, 0, [spec.width, spec.height, spec.width, spec.height])
    seen: Boxes = cut[(cut[:, 0] < cut[:, 2]) & (cut[:, 1] < cut[:, 3])]
    return seen
