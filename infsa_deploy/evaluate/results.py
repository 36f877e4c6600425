"""What an evaluation finds, as records for JSON. Shares and probabilities are within 0..1; intervals are of 95 %."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over `images` images and its interval; all None where no image could be measured."""

    mean: float | None
    low: float | None
    high: float | None
    images: int


@dataclass(frozen=True)
class CalibrationBin:
    """The images whose confidence lies in one bin: how many, how confident, how often right."""

    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Accuracy:
    """How well a model names the labelled classes.

    Attributes:
        top1: share of images whose first class is the label, with Wilson's interval.
        top5: share whose first five hold it (all classes, where there are fewer).
        ece: expected calibration error, see metrics.calibration.
        per_class: share of each class's images named rightly; None for a class without images.
        confusion: images by labelled (row) and first (column) class.
    """

    top1: Estimate
    top5: float
    ece: float
    calibration: tuple[CalibrationBin, ...]
    per_class: Mapping[str, float | None]
    confusion: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Faithfulness:
    """What happens to a model's answer as patches are removed, see removal.

    Attributes:
        baseline: what a removed patch shows, `blur` or `mean`.
        morf_aoc: area over the curve, most relevant patches first.
        lerf_auc: area under the curve, least relevant patches first.
        removed: share of patches removed at each point of the curves.
        morf: mean probability of the first class at each point.
        lerf: the same, least relevant first.
    """

    baseline: str
    morf_aoc: Estimate
    lerf_auc: Estimate
    removed: tuple[float, ...]
    morf: tuple[float, ...]
    lerf: tuple[float, ...]


@dataclass(frozen=True)
class AttentionQuality:
    """Whether the attention lies on what matters.

    Attributes:
        layer: the layer the maps are of, or `mean` over layers; heads are averaged.
        faithfulness: one entry a baseline.
        roc_auc: area under the ROC curve of the map against the boxes, see localisation.
        pr_auc: average precision of the same.
        pr_chance: average precision of a map that knows nothing: the share of pixels in boxes.
        pointing: share of images whose map has its maximum in a box.
    """

    layer: str
    faithfulness: tuple[Faithfulness, ...]
    roc_auc: Estimate
    pr_auc: Estimate
    pr_chance: float | None
    pointing: Estimate


@dataclass(frozen=True)
class ModelResult:
    """One model: what ran, and what it scored; accuracy is None without labels, attention where not asked for."""

    model: str
    runtime: str
    dtype: str
    variant: str
    images: int
    accuracy: Accuracy | None
    attention: AttentionQuality | None


@dataclass(frozen=True)
class PairedComparison:
    """Two models on the same images, by McNemar's test.

    Attributes:
        model: the model compared.
        reference: the one it is compared with.
        images: images both answered.
        same_answer: share of images on which their first classes agree, right or wrong.
        only_reference_right: images only the reference names rightly.
        only_model_right: images only the model names rightly.
        difference: accuracy of the model minus that of the reference, with its interval.
        p_value: probability of disagreements at least this one-sided if both were equally good.
    """

    model: str
    reference: str
    images: int
    same_answer: float
    only_reference_right: int
    only_model_right: int
    difference: Estimate
    p_value: float


@dataclass(frozen=True)
class Problem:
    """An image that was left out of something, and why; `fatal` ones make the command fail at its end."""

    image: str
    reason: str
    fatal: bool


@dataclass(frozen=True)
class EvaluationReport:
    """Several models on one set of images."""

    data: str
    images: int
    models: tuple[ModelResult, ...]
    comparisons: tuple[PairedComparison, ...]
    problems: tuple[Problem, ...]
