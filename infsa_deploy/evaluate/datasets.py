"""Labelled images: a folder in one of the usual layouts, or the zoo's own test set."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from infsa_deploy.errors import UsageError
from infsa_deploy.evaluate.boxes import Box, check_distinct, read_boxes
from infsa_deploy.runtime.pictures.folder import SUFFIXES, ZOO
from infsa_deploy.runtime.pictures.preprocess import Pixels, read_image

ZOO_IMAGES = 1000
UNNAMED = "class 0"  # what an export calls the first class when nobody named it


@dataclass(frozen=True)
class Sample:
    """One image: how to read it ([H, W, C] in [0, 1]), its class, and the boxes on it (None: no annotation)."""

    name: str
    read: Callable[[], Pixels]
    label: int | None
    boxes: tuple[Box, ...] | None


@dataclass(frozen=True)
class DataSource:
    """Where images, labels and boxes are.

    Attributes:
        images: a folder, or `zoo`.
        synsets: a file with one class a line, in the order of the logits: the folder's name, a blank, anything.
        labels: a .csv or text file with one image a line: its name, then its class (name, folder's name or number).
        boxes: see boxes.read_boxes.
        limit: take so many images at most, spread evenly over all; None takes all (of the zoo, ZOO_IMAGES).
    """

    images: str
    synsets: Path | None = None
    labels: Path | None = None
    boxes: Path | None = None
    limit: int | None = None


def open_dataset(source: DataSource, classes: Sequence[str]) -> list[Sample]:
    """List the images of `source` for a model with these class names; pictures are read later.

    A folder holds either one folder a class (any depth below), or images only; those need `labels`, or stay
    unlabelled.

    Raises:
        UsageError: there are no images, labels that are no class of the model, or images whose name, by which labels
            and boxes are found, is another's.
        ModelError: an annotation cannot be read.
    """
    if source.images == ZOO:
        return _zoo(source.limit or ZOO_IMAGES, classes)
    folder = Path(source.images)
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        why = f"it holds no file ending in {', '.join(SUFFIXES)}." if folder.is_dir() else "there is no such folder."
        raise UsageError(f"there are no images in {folder}.", why, "give a folder of images, or --data zoo.")
    if source.labels or source.boxes:
        check_distinct([path.stem for path in paths], "images", folder)
    labels = _labels(source, folder, paths, classes)
    boxes = read_boxes(source.boxes) if source.boxes else {}
    samples = [
        Sample(str(path.relative_to(folder)), partial(read_image, path), labels[path], boxes.get(path.stem))
        for path in paths
    ]
    return samples if source.limit is None else _spread(samples, source.limit)


def _spread(samples: list[Sample], count: int) -> list[Sample]:
    places = np.linspace(0, len(samples) - 1, min(count, len(samples))).round().astype(int)
    return [samples[place] for place in places]


def _zoo(count: int, classes: Sequence[str]) -> list[Sample]:
    from infsa_models import digits

    if tuple(classes) != digits.CLASS_NAMES:
        raise UsageError(
            "the zoo's test images are digits, and the model's classes are not.",
            f"its classes are {_listed(classes)}.",
            "give a folder of its own images with --data DIR.",
        )
    test = digits.test_set(count)
    return [
        Sample(f"zoo {index}", partial(_unit, image), int(label), ((box[0], box[1], box[2], box[3]),))
        for index, (image, label, box) in enumerate(zip(test.images, test.labels, test.boxes.tolist(), strict=True))
    ]


def _unit(image: Pixels) -> Pixels:
    pixels: Pixels = image[..., None].astype(np.float32) / np.float32(255)
    return pixels


def _labels(
    source: DataSource, folder: Path, paths: Sequence[Path], classes: Sequence[str]
) -> Mapping[Path, int | None]:
    known = {name: index for index, name in enumerate(classes)}
    if source.synsets:
        known |= {name: index for index, name in enumerate(_synsets(source.synsets, len(classes)))}
    if source.labels:
        named = _read_labels(source.labels)
        missing = [path.name for path in paths if path.stem not in named]
        if missing:
            raise UsageError(f"{source.labels} has no line for {_listed(missing)}.", "", "label every image.")
        return {path: _class_index(named[path.stem], known, len(classes), source.labels) for path in paths}
    folders = sorted({path.relative_to(folder).parts[0] for path in paths if path.parent != folder})
    if not folders:
        return dict.fromkeys(paths)
    if any(path.parent == folder for path in paths):
        raise UsageError(f"{folder} holds images beside folders of images.", "", "sort all of them into class folders.")
    if classes[0] == UNNAMED and not source.synsets and len(folders) == len(classes):
        known = {name: index for index, name in enumerate(folders)}
    unknown = [name for name in folders if name not in known]
    if unknown:
        raise UsageError(
            f"{folder}: {len(unknown)} of {len(folders)} class folders are no class of the model: {_listed(unknown)}.",
            f"its {len(classes)} classes are {_listed(classes)}.",
            "rename the folders, or say with --synsets which class each of them is.",
        )
    return {path: known[path.relative_to(folder).parts[0]] for path in paths}


def _synsets(path: Path, count: int) -> list[str]:
    names = [line.split()[0] for line in _lines(path)]
    if len(names) != count:
        raise UsageError(f"{path} lists {len(names)} classes.", f"the model has {count}.", "give one class a line.")
    return names


def _read_labels(path: Path) -> dict[str, str]:
    """Class by image stem; commas or blanks part the columns, and what follows the second is ignored."""
    rows = csv.reader(_lines(path)) if path.suffix == ".csv" else (line.split(maxsplit=1) for line in _lines(path))
    return {Path(row[0]).stem: row[1].strip() for row in rows if len(row) > 1 and row[1].strip()}


def _class_index(name: str, known: Mapping[str, int], count: int, path: Path) -> int:
    """The class a label means: all of it, its first word (a synset with its boxes), or a number."""
    for spelling in (name, name.split()[0]):
        if spelling in known:
            return known[spelling]
    if name.isdigit() and int(name) < count:
        return int(name)
    raise UsageError(f"{path}: {name!r} is no class of the model.", f"they are {_listed(list(known))}.", "correct it.")


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}.", str(error), "give a UTF-8 text file.") from error


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)} in all)" if len(names) > 5 else "")
