"""Heat maps over images: what each layer and head of a model looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from infsa_deploy.errors import HostError
from infsa_deploy.evaluate.model import Classifier, check_has_maps
from infsa_deploy.evaluate.run import heads_of
from infsa_deploy.files import check_apart, written_whole
from infsa_deploy.runtime.pictures.preprocess import prepare

COLOURS = "inferno"  # perceptually uniform
ALPHA = 0.55
LONGEST = 1024  # pixels of a drawn image's longer side: what a figure can show
DPI = 150

Map = npt.NDArray[np.float64]
Picture = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Explanation:
    """One image: the answer, the drawn figure, and the file of raw maps [L, H, h, w] (float32)."""

    image: str
    predicted: str
    score: float
    layer: str
    figure: str
    maps: str


def explain(
    classifier: Classifier,
    images: Sequence[Path],
    folder: Path,
    layer: str = "mean",
    progress: Callable[[str], None] = lambda phase: None,
) -> list[Explanation]:
    """Write NAME.png and NAME.npy for each image to `folder`, which is made if need be.

    The figure shows the part of the image that the model sees, and over it the map of each head and of their mean,
    upsampled bilinearly from the patches, which are counted in its caption.

    Args:
        classifier: a model with attention maps.
        images: picture files of any size; of two with the same name the second gets a number.
        folder: where to write.
        layer: `mean` over layers, `last`, or a number from 0.
        progress: called with what is being done.

    Raises:
        ModelError: the model has no maps, or a file is no image.
        UsageError: the model has no such layer, or a figure would replace an image or the model.
        HostError: the folder cannot be written to.
    """
    check_has_maps(classifier)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the folder {folder}.", str(error), "choose another with -o.") from error
    names: set[str] = set()
    targets = [folder / _free_stem(path.stem, names) for path in images]
    files = [Path(f"{target}{suffix}") for target in targets for suffix in (".png", ".npy")]
    check_apart(files, [*images, Path(classifier.name)])
    found = []
    for index, (path, target) in enumerate(zip(images, targets, strict=True)):
        progress(f"{path} ({index + 1} of {len(images)})")
        found.append(_explain_one(classifier, path, target, layer))
    return found


def _free_stem(stem: str, taken: set[str]) -> str:
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _explain_one(classifier: Classifier, path: Path, target: Path, layer: str) -> Explanation:
    pixels = prepare(path, classifier.image)
    probabilities, maps = classifier(pixels)
    assert maps is not None
    best = int(probabilities[0].argmax())
    explanation = Explanation(
        image=str(path),
        predicted=classifier.classes[best],
        score=float(probabilities[0, best]),
        layer=layer,
        figure=f"{target}.png",
        maps=f"{target}.npy",
    )
    figure = _draw(seen(pixels[0], classifier), maps[0], explanation)
    with written_whole(Path(explanation.figure)) as scratch:
        figure.savefig(scratch, dpi=DPI)
    with written_whole(Path(explanation.maps)) as scratch:
        np.save(scratch, maps[0].astype(np.float32))
    return explanation


def seen(pixels: Picture, classifier: Classifier) -> Picture:
    """What the model was shown, [C, H, W] normalised, as a picture [h, w, C] in [0, 1] of at most LONGEST pixels."""
    image = classifier.image
    mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (image.mean, image.std))
    picture = (pixels * std + mean).clip(0, 1)
    shrink = max(1.0, max(picture.shape[1:]) / LONGEST)
    size = (round(picture.shape[2] / shrink), round(picture.shape[1] / shrink))
    return np.stack([_resized(plane, size, Image.Resampling.BOX) for plane in picture], axis=2)


def _resized(plane: npt.NDArray[Any], size: tuple[int, int], how: Image.Resampling) -> Picture:
    image = Image.fromarray(np.ascontiguousarray(plane, np.float32))
    return np.asarray(image if image.size == size else image.resize(size, how), np.float32)


def _draw(picture: Picture, maps: Map, explanation: Explanation) -> Any:
    """A row of panels: the image, the mean over heads, each head; one colour scale for all, from 0."""
    from matplotlib.figure import Figure

    heads = heads_of(maps, explanation.layer)
    panels = {"mean of heads": heads.mean(axis=0)}
    panels |= {f"head {index}": heat for index, heat in enumerate(heads)}
    columns = min(5, 1 + len(panels))
    rows = -(-(1 + len(panels)) // columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.8 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for each in axes:
        each.axis("off")
    shown: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1} if picture.shape[2] == 1 else {}
    size = (picture.shape[1], picture.shape[0])
    top = max(float(heat.max()) for heat in panels.values()) or 1.0
    axes[0].imshow(picture, **shown)
    axes[0].set_title("what the model sees", fontsize="small")
    for each, (title, heat) in zip(axes[1:], panels.items(), strict=False):
        each.imshow(picture, **shown)
        drawn = each.imshow(
            _resized(heat, size, Image.Resampling.BILINEAR), cmap=COLOURS, alpha=ALPHA, vmin=0, vmax=top
        )
        each.set_title(title, fontsize="small")
    figure.colorbar(drawn, ax=axes, label="share of attention on a patch", shrink=0.8)
    grid = f"{maps.shape[2]} x {maps.shape[3]} patches, upsampled bilinearly"
    title = f"{explanation.predicted} ({explanation.score:.1%}); layer {explanation.layer}, {grid}"
    figure.suptitle(title, fontsize="medium")
    return figure
