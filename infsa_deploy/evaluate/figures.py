"""Figures of an evaluation, drawn without a display."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from infsa_deploy.evaluate.removal import BASELINES
from infsa_deploy.evaluate.results import EvaluationReport, ModelResult
from infsa_deploy.files import written_whole

DPI = 150
FIGURES = RELIABILITY, REMOVAL = "reliability.png", "removal.png"
MARKERS = "osD^vPX*"  # a model's own, for readers without colours


def draw_evaluation(report: EvaluationReport, folder: Path) -> list[Path]:
    """Write reliability.png if there are labels, removal.png if patches were removed; returns what was written."""
    written = []
    if any(result.accuracy for result in report.models):
        written.append(_save(_reliability(report), folder / RELIABILITY))
    if any(_curves(result, baseline) for result in report.models for baseline in BASELINES):
        written.append(_save(_removal(report), folder / REMOVAL))
    return written


def _save(figure: Any, path: Path) -> Path:
    with written_whole(path) as scratch:
        figure.savefig(scratch, dpi=DPI)
    return path


def _axes(columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * columns, 5.5), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _reliability(report: EvaluationReport) -> Any:
    figure, (axes,) = _axes(1)
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="calibrated")
    for marker, result in zip(itertools.cycle(MARKERS), report.models, strict=False):
        if result.accuracy:
            bins = [part for part in result.accuracy.calibration if part.images]
            label = f"{_name(result)}: ECE {result.accuracy.ece:.3f}"
            points = [b.confidence for b in bins], [b.accuracy for b in bins]
            axes.plot(*points, marker=marker, markersize=4, label=label)
    axes.set(xlabel="mean confidence of a bin", ylabel="accuracy of the bin", title="Reliability", aspect="equal")
    axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return figure


def _removal(report: EvaluationReport) -> Any:
    figure, panels = _axes(len(BASELINES))
    for axes, baseline in zip(panels, BASELINES, strict=True):
        for number, (marker, result) in enumerate(zip(itertools.cycle(MARKERS), report.models, strict=False)):
            for found in _curves(result, baseline):
                style = {"color": f"C{number}", "marker": marker, "markersize": 4}
                label = f"{_name(result)}: AOC {found.morf_aoc.mean:.3f}"
                axes.plot(found.removed, found.morf, label=label, **style)
                axes.plot(found.removed, found.lerf, linestyle="--", **style)
        axes.set(
            xlabel="share of patches removed",
            ylabel="probability of the first class",
            ylim=(0, 1),
            title=f"Removed patches: {baseline}\n(solid: most relevant first, dashed: least)",
        )
        axes.legend(fontsize="x-small", loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return figure


def _curves(result: ModelResult, baseline: str) -> list[Any]:
    found = result.attention.faithfulness if result.attention else ()
    return [curves for curves in found if curves.baseline == baseline and curves.removed]


def _name(result: ModelResult) -> str:
    return f"{Path(result.model).stem} ({result.runtime} {result.dtype})"
