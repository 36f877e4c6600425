"""Running models over images and summing up what each image says."""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from infsa_deploy.errors import DeployError, ModelError, UsageError
from infsa_deploy.evaluate import localisation, metrics
from infsa_deploy.evaluate.boxes import Boxes, as_seen, check_inside
from infsa_deploy.evaluate.datasets import Sample
from infsa_deploy.evaluate.journal import Entry, Journal
from infsa_deploy.evaluate.metrics import attention_quality, compared
from infsa_deploy.evaluate.model import Classifier, check_has_maps
from infsa_deploy.evaluate.removal import BASELINES, removal_curves
from infsa_deploy.evaluate.results import EvaluationReport, ModelResult, Problem
from infsa_deploy.runtime.pictures.preprocess import at_own_size, preprocess

AHEAD = 2  # batches read while one is computed

Map = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        attention: measure attention quality, not only accuracy.
        layer: maps of the `last` layer, of layer number `0`, `1`, ..., or the `mean` over layers. Of the last layer a
            classifier may read the class token's row alone, and then its centrality says little.
        steps: points of a removal curve after the first.
        removal_images: images that patches are removed from, spread evenly; None: all.
        seed: orders patches of equal heat.
        workers: threads that read pictures.
    """

    attention: bool = False
    layer: str = "mean"
    steps: int = 10
    removal_images: int | None = None
    seed: int = 0
    workers: int = 2

    def __post_init__(self) -> None:
        check_layer(self.layer)
        if self.steps < 1:
            raise UsageError(f"{self.steps} steps are not possible.", "a curve has at least 1.", "write 10.")


def evaluate_models(
    classifiers: Sequence[Classifier],
    samples: Sequence[Sample],
    data: str,
    plan: Plan,
    *,
    journals: Sequence[Callable[[dict[str, Any]], Journal]] = (),
    progress: Callable[[str], None] = lambda phase: None,
) -> EvaluationReport:
    """Evaluate models on the same images and compare each with the first.

    An image that cannot be read, or whose boxes reach out of it, is named in `problems` and left out; the rest goes
    on. Of what a journal knows, only such images are tried again.

    Args:
        classifiers: the models; their class names agree.
        samples: the images.
        data: what the images are called in the report.
        plan: what to measure.
        journals: for each model, opens the journal of a task; default: in memory.
        progress: called with what is being done.

    Raises:
        ModelError: attention is asked of a model without maps.
        UsageError: the models' classes differ, or a journal is of another task.
    """
    _check_comparable(classifiers)
    opened = []
    for index, classifier in enumerate(classifiers):
        if plan.attention:
            check_has_maps(classifier)
        task = _task(classifier, samples, data, plan)
        opened.append(journals[index](task) if journals else Journal(None, task))
    for classifier, journal in zip(classifiers, opened, strict=True):
        _run(classifier, samples, plan, journal, progress)
    results = [_result(c, samples, journal, plan) for c, journal in zip(classifiers, opened, strict=True)]
    problems = {(entry["image"], entry["problem"]): entry for journal in opened for entry in _problematic(journal)}
    return EvaluationReport(
        data=data,
        images=len(samples),
        models=tuple(results),
        comparisons=tuple(compared(classifiers, [journal.entries for journal in opened])),
        problems=tuple(Problem(image, why, entry["fatal"]) for (image, why), entry in problems.items()),
    )


def _check_comparable(classifiers: Sequence[Classifier]) -> None:
    first = classifiers[0]
    for other in classifiers[1:]:
        if other.classes != first.classes:
            raise UsageError(
                f"{other.name} and {first.name} cannot be compared.", "their classes differ.", "evaluate them apart."
            )


def _task(classifier: Classifier, samples: Sequence[Sample], data: str, plan: Plan) -> dict[str, Any]:
    listed = "\n".join(f"{sample.name}\t{sample.label}\t{sample.boxes}" for sample in samples)
    options = {key: value for key, value in asdict(plan).items() if key != "workers"}
    return {
        "model": classifier.identity,
        "data": data,
        "samples": hashlib.sha256(listed.encode()).hexdigest(),
        "plan": options,
    }


def _problematic(journal: Journal) -> Iterator[Entry]:
    return (entry for entry in journal.entries.values() if "problem" in entry)


def _run(
    classifier: Classifier, samples: Sequence[Sample], plan: Plan, journal: Journal, progress: Callable[[str], None]
) -> None:
    removing = _removing(samples, plan)
    known = {name for name, entry in journal.entries.items() if not entry.get("fatal")}
    left = [sample for sample in samples if sample.name not in known]
    for batch in _read_ahead(left, classifier, plan.workers):
        progress(f"{classifier.name}: {len(journal.entries)} of {len(samples)} images")
        readable = [item for item in batch if isinstance(item, _Read)]
        entries: list[Entry] = [item for item in batch if not isinstance(item, _Read)]
        if readable:
            pixels = np.concatenate([item.pixels for item in readable])
            probabilities, maps = classifier(pixels)
            for index, item in enumerate(readable):
                entry = _answer(item.sample, probabilities[index])
                if plan.attention and maps is not None:
                    heat = heads_of(maps[index], plan.layer).mean(axis=0)
                    entry |= _attention(classifier, item, heat, plan, item.sample.name in removing)
                entries.append(entry)
        journal.add(entries)


def _removing(samples: Sequence[Sample], plan: Plan) -> set[str]:
    count = len(samples) if plan.removal_images is None else min(plan.removal_images, len(samples))
    places = np.linspace(0, len(samples) - 1, count).round().astype(int)
    return {samples[place].name for place in places}


@dataclass(frozen=True)
class _Read:
    """A picture as the model takes it, [1, C, H, W], and its boxes there (None: not annotated)."""

    sample: Sample
    pixels: npt.NDArray[np.float32]
    boxes: Boxes | None


def _read_ahead(samples: Sequence[Sample], classifier: Classifier, workers: int) -> Iterator[list[_Read | Entry]]:
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[list[Future[_Read | Entry]]] = deque()
        for start in range(0, len(samples), classifier.batch):
            batch = samples[start : start + classifier.batch]
            waiting.append([pool.submit(_read, sample, classifier) for sample in batch])
            if len(waiting) > AHEAD:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]


def _read(sample: Sample, classifier: Classifier) -> _Read | Entry:
    try:
        picture = sample.read()
        height, width, _ = picture.shape
        boxes = None
        if sample.boxes is not None:
            check_inside(sample.boxes, height, width)
            boxes = as_seen(sample.boxes, height, width, at_own_size((height, width), classifier.image))
        return _Read(sample, preprocess(picture, classifier.image), boxes)
    except DeployError as error:
        return {"image": sample.name, "problem": " ".join(filter(None, (error.what, error.why))), "fatal": True}


def _answer(sample: Sample, probabilities: npt.NDArray[np.float64]) -> Entry:
    ranked = np.argsort(-probabilities, kind="stable")[: metrics.RANKED]
    return {
        "image": sample.name,
        "label": sample.label,
        "ranked": ranked.tolist(),
        "confidence": float(probabilities[ranked[0]]),
    }


def check_layer(layer: str) -> None:
    """Raise UsageError unless `layer` is `last`, `mean` or a number from 0."""
    if layer not in ("last", "mean") and not layer.isdigit():
        raise UsageError(f"layer {layer!r} is not valid.", "", "write last, mean, or a number from 0.")


def heads_of(maps: Map, layer: str) -> Map:
    """The maps [H, h, w] of one layer of [L, H, h, w], or their mean over layers; UsageError for a layer not there."""
    check_layer(layer)
    index = len(maps) - 1 if layer in ("last", "mean") else int(layer)
    if index >= len(maps):
        raise UsageError(f"there is no layer {layer}.", f"the model has layers 0 to {len(maps) - 1}.", "choose one.")
    heads: Map = maps.mean(axis=0) if layer == "mean" else maps[index]
    return heads


def _attention(classifier: Classifier, item: _Read, heat: Map, plan: Plan, removing: bool) -> Entry:
    image = item.pixels[0]
    found: Entry = _located(heat, item.boxes, (image.shape[1], image.shape[2]))
    if removing:
        seed = plan.seed + zlib.crc32(item.sample.name.encode())
        for baseline in BASELINES:
            curves = removal_curves(
                image,
                heat,
                lambda pixels: classifier(pixels)[0],
                baseline=baseline,
                steps=plan.steps,
                seed=seed,
                batch=classifier.batch,
            )
            found[baseline] = {
                "removed": curves.removed.tolist(),
                "morf": curves.morf.tolist(),
                "lerf": curves.lerf.tolist(),
                "morf_aoc": curves.morf_aoc,
                "lerf_auc": curves.lerf_auc,
            }
    return found


def _located(heat: Map, boxes: Boxes | None, image: tuple[int, int]) -> Entry:
    if boxes is None:
        return {"problem": "it has no box: left out of ROC, PR and the pointing game.", "fatal": False}
    covered = localisation.coverage(boxes, image, (heat.shape[0], heat.shape[1]))
    if covered.max() == 0 or covered.min() == 1:
        where = "outside its boxes" if covered.min() == 1 else "in its boxes"
        why = f"the model sees no pixel {where}: left out of ROC, PR and the pointing game."
        return {"problem": why, "fatal": False}
    return {
        "roc_auc": localisation.roc_auc(heat, covered),
        "pr_auc": localisation.average_precision(heat, covered),
        "pr_chance": float(covered.mean()),
        "pointing": localisation.pointing_hit(heat, boxes, image),
    }


def _result(classifier: Classifier, samples: Sequence[Sample], journal: Journal, plan: Plan) -> ModelResult:
    answered = [entry for entry in journal.entries.values() if "ranked" in entry]
    if not answered:
        first = next(_problematic(journal))["problem"]
        raise ModelError("no image could be evaluated.", f"all {len(samples)} failed, the first so: {first}")
    labelled = [entry for entry in answered if entry["label"] is not None]
    scored = None
    if labelled:
        scored = metrics.accuracy(
            np.array([entry["label"] for entry in labelled]),
            np.array([entry["ranked"] for entry in labelled]),
            np.array([entry["confidence"] for entry in labelled]),
            classifier.classes,
        )
    return ModelResult(
        model=classifier.name,
        runtime=classifier.runtime,
        dtype=classifier.dtype,
        variant=classifier.variant,
        images=len(answered),
        accuracy=scored,
        attention=attention_quality(answered, plan.layer) if plan.attention else None,
    )
