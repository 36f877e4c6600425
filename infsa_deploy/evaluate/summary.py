"""From what each image says to what the images say together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from infsa_deploy.evaluate.journal import Entry
from infsa_deploy.evaluate.model import Classifier
from infsa_deploy.evaluate.removal import BASELINES
from infsa_deploy.evaluate.results import AttentionQuality, Faithfulness, PairedComparison
from infsa_deploy.evaluate.statistics import mcnemar_p_value, mean_estimate, paired_difference


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
