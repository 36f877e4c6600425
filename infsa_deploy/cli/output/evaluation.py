"""An evaluation as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from infsa_deploy.evaluate.results import AttentionQuality, Estimate, EvaluationReport, ModelResult

SHOWN = 10  # problems named one by one


def evaluation_tables(report: EvaluationReport) -> Iterator[Table]:
    """Accuracy, comparisons and attention quality, as far as they were measured."""
    if any(result.accuracy for result in report.models):
        yield _accuracy(report)
    if report.comparisons:
        yield _comparisons(report)
    if any(result.attention for result in report.models):
        yield _attention(report)


def problem_notes(report: EvaluationReport) -> list[str]:
    """The images that were left out of something, by name; beyond SHOWN they are only counted."""
    notes = [f"{problem.image}: {problem.reason}" for problem in report.problems[:SHOWN]]
    more = len(report.problems) - SHOWN
    return [*notes, f"... and {more} more; --json and -o name them all"] if more > 0 else notes


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    return table


def _named(result: ModelResult) -> str:
    return f"{result.model}\n{result.variant}, {result.runtime} {result.dtype}"


def _accuracy(report: EvaluationReport) -> Table:
    table = _table(f"Accuracy on {report.data}", "model", "images", "top-1 (95 %)", "top-5", "ECE")
    for result in report.models:
        if result.accuracy:
            found = result.accuracy
            cells = (_percent(found.top1), f"{found.top5:.1%}", f"{found.ece:.3f}")
            table.add_row(_named(result), str(result.images), *cells)
    return table


def _comparisons(report: EvaluationReport) -> Table:
    reference = report.comparisons[0].reference
    headings = ("model", "same answer", "only it right", "only first", "difference (95 %)", "p")
    table = _table(f"Against {reference} (McNemar's exact test)", *headings)
    for c in report.comparisons:
        table.add_row(
            c.model,
            f"{c.same_answer:.1%}",
            str(c.only_model_right),
            str(c.only_reference_right),
            _percent(c.difference, signed=True),
            f"{c.p_value:.3g}",
        )
    return table


def _attention(report: EvaluationReport) -> Table:
    found = [(result, result.attention) for result in report.models if result.attention]
    table = _table(f"Attention quality, layer {found[0][1].layer}", "", *(_named(result) for result, _ in found))
    columns = [_attention_column(quality) for _, quality in found]
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    return table


def _attention_column(quality: AttentionQuality) -> dict[str, str]:
    cells = {}
    for curves in quality.faithfulness:
        cells[f"MoRF-AOC, {curves.baseline}"] = _percent(curves.morf_aoc)
        cells[f"LeRF-AUC, {curves.baseline}"] = _percent(curves.lerf_auc)
    cells["ROC-AUC"] = _percent(quality.roc_auc)
    cells["PR-AUC"] = _percent(quality.pr_auc)
    cells["PR-AUC of chance"] = "-" if quality.pr_chance is None else f"{quality.pr_chance:.1%}"
    cells["pointing game"] = _percent(quality.pointing)
    return cells


def _percent(estimate: Estimate, *, signed: bool = False) -> str:
    """`98.7 % (97.8 to 99.2)`, or a dash where nothing was measured."""
    if estimate.mean is None:
        return "-"
    sign = "+" if signed else ""
    mean = f"{100 * estimate.mean:{sign}.1f} %"
    if estimate.low is None or estimate.high is None:
        return mean
    return f"{mean} ({100 * estimate.low:{sign}.1f} to {100 * estimate.high:{sign}.1f})"
