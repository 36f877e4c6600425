"""Figures with their uncertainty: proportions, means, paired tests; accuracy, calibration and quality of maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from infsa_deploy.evaluate.journal import Entry
from infsa_deploy.evaluate.model import Classifier
from infsa_deploy.evaluate.removal import BASELINES
from infsa_deploy.evaluate.results import (
    Accuracy,
    AttentionQuality,
    CalibrationBin,
    Estimate,
    Faithfulness,
    PairedComparison,
)

Z = 1.959963984540054  # two-sided 95 % of the normal distribution


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test: twice the smaller tail of Binomial(n, 1/2), at most 1.

    Args: how many cases only the one, and only the other, got right; cases on which both agree do not count.
    Source: Q. McNemar, Psychometrika 12 (1947) 153-157; the exact form is the sign test.
    """
    n, fewer = only_first + only_second, min(only_first, only_second)
    term = tail = 1
    for k in range(fewer):
        term = term * (n - k) // (k + 1)
        tail += term
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))


def paired_difference(only_first: int, only_second: int, pairs: int) -> Estimate:
    """Accuracy of the second minus that of the first on the same cases, with a 95 % interval.

    The interval is Wald's after one success is added to each kind of disagreement. Source: D. G. Bonett and
    R. M. Price, J. Educational and Behavioral Statistics 37 (2012) 479-488.
    """
    first, second = ((count + 1) / (pairs + 2) for count in (only_first, only_second))
    centre = second - first
    spread = Z * math.sqrt((first + second - centre**2) / (pairs + 2))
    return Estimate((only_second - only_first) / pairs, max(-1.0, centre - spread), min(1.0, centre + spread), pairs)


def proportion(successes: int, trials: int) -> Estimate:
    """A share with Wilson's 95 % score interval. Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209-212."""
    if not trials:
        return Estimate(None, None, None, 0)
    share, weight = successes / trials, Z**2 / trials
    centre = (share + weight / 2) / (1 + weight)
    spread = Z / (1 + weight) * math.sqrt(share * (1 - share) / trials + weight / (4 * trials))
    return Estimate(share, max(0.0, centre - spread), min(1.0, centre + spread), trials)


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean of one number within 0..1 an image, with the normal 95 % interval (None for a single image)."""
    if not values:
        return Estimate(None, None, None, 0)
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, None, None, 1)
    spread = Z * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, max(0.0, mean - spread), min(1.0, mean + spread), len(values))


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BINS = 15
RANKED = 5


def accuracy(labels: Ints, ranked: Ints, confidence: Floats, classes: Sequence[str]) -> Accuracy:
    """Score predictions.

    Args:
        labels: [images], the right class of each.
        ranked: [images, up to RANKED], classes in falling order of probability.
        confidence: [images], probability of the first class.
        classes: class names.
    """
    right = ranked[:, 0] == labels
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (labels, ranked[:, 0]), 1)
    counts = confusion.sum(axis=1)
    per_class = {
        name: float(confusion[index, index] / counts[index]) if counts[index] else None
        for index, name in enumerate(classes)
    }
    ece, bins = calibration(right, confidence)
    return Accuracy(
        top1=proportion(int(right.sum()), len(labels)),
        top5=float((ranked == labels[:, None]).any(axis=1).mean()),
        ece=ece,
        calibration=bins,
        per_class=per_class,
        confusion=tuple(tuple(int(count) for count in row) for row in confusion),
    )


def calibration(right: npt.NDArray[np.bool_], confidence: Floats) -> tuple[float, tuple[CalibrationBin, ...]]:
    """The expected calibration error, `sum over bins of share of images * |accuracy - mean confidence|`.

    BINS bins of equal width divide (0, 1], each closed above. Source: C. Guo et al., On Calibration of Modern Neural
    Networks, ICML 2017, equation 3.
    """
    edges = np.linspace(0, 1, BINS + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    bins, error = [], 0.0
    for index in range(BINS):
        inside = place == index
        count = int(inside.sum())
        if not count:
            bins.append(CalibrationBin(0, float(edges[index] + edges[index + 1]) / 2, 0.0))
            continue
        mean, share = float(confidence[inside].mean()), float(right[inside].mean())
        bins.append(CalibrationBin(count, mean, share))
        error += count / len(confidence) * abs(share - mean)
    return error, tuple(bins)


def attention_quality(entries: Sequence[Entry], layer: str) -> AttentionQuality:
    """Means over images of what was measured on each."""

    def measured(name: str) -> list[float]:
        return [entry[name] for entry in entries if name in entry]

    chance = measured("pr_chance")
    return AttentionQuality(
        layer=layer,
        faithfulness=tuple(_faithfulness(entries, baseline) for baseline in BASELINES),
        roc_auc=mean_estimate(measured("roc_auc")),
        pr_auc=mean_estimate(measured("pr_auc")),
        pr_chance=float(np.mean(chance)) if chance else None,
        pointing=mean_estimate(measured("pointing")),
    )


def _faithfulness(entries: Sequence[Entry], baseline: str) -> Faithfulness:
    curves = [entry[baseline] for entry in entries if baseline in entry]
    grids = {tuple(curve["removed"]) for curve in curves}
    alike = len(grids) == 1  # images of several sizes have several curves, which share no points to average at

    def averaged(name: str) -> tuple[float, ...]:
        return tuple(np.mean([curve[name] for curve in curves], axis=0).tolist()) if alike else ()

    return Faithfulness(
        baseline=baseline,
        morf_aoc=mean_estimate([curve["morf_aoc"] for curve in curves]),
        lerf_auc=mean_estimate([curve["lerf_auc"] for curve in curves]),
        removed=averaged("removed"),
        morf=averaged("morf"),
        lerf=averaged("lerf"),
    )


def compared(classifiers: Sequence[Classifier], journals: Sequence[Mapping[str, Entry]]) -> Iterator[PairedComparison]:
    """Each model against the first, on the labelled images that both answered."""
    for classifier, entries in zip(classifiers[1:], journals[1:], strict=True):
        pairs = [
            (mine, entries[name])
            for name, mine in journals[0].items()
            if mine.get("label") is not None and "ranked" in entries.get(name, ())
        ]
        if not pairs:
            continue
        rights = [[entry["ranked"][0] == entry["label"] for entry in pair] for pair in pairs]
        only_reference = sum(first and not second for first, second in rights)
        only_model = sum(second and not first for first, second in rights)
        yield PairedComparison(
            model=classifier.name,
            reference=classifiers[0].name,
            images=len(pairs),
            same_answer=float(np.mean([first["ranked"][0] == second["ranked"][0] for first, second in pairs])),
            only_reference_right=only_reference,
            only_model_right=only_model,
            difference=paired_difference(only_reference, only_model, len(pairs)),
            p_value=mcnemar_p_value(only_reference, only_model),
        )
