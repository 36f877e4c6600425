"""Records as tables for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from infsa_deploy.records import CheckResult, GraphSummary, ValidationReport

STYLES = {"ok": "green", "absent": "yellow", "problem": "red"}


def comparison_table(report: ValidationReport) -> Table:
    """One row an output and set of inputs; `needed` is the error in units of the eager error, allowed is 2."""
    table = Table(title=f"{report.model} on {report.runtime}, {report.dtype}, against the reference in float64")
    for heading in ("output", "inputs", "max abs", "relative", "cosine", "top-1", "eager error", "bound", "result"):
        table.add_column(heading, justify="left" if heading in ("output", "inputs", "result") else "right")
    for c in report.comparisons:
        needed = c.max_abs / c.eager_max_abs if c.eager_max_abs else float("inf") if c.max_abs else 0.0
        table.add_row(
            c.output,
            f"{c.images} {c.inputs}",
            f"{c.max_abs:.2e}",
            f"{c.relative:.2e}",
            f"{c.cosine:.8f}",
            f"{c.top1_agreement:.1%}",
            f"{c.eager_max_abs:.2e}",
            f"{c.bound:.2e}",
            Text(f"{'pass' if c.passed else 'FAIL'}, {needed:.2f}x eager", "green" if c.passed else "red"),
        )
    return table


def checks_table(results: list[CheckResult]) -> Table:
    """One row a check, its fix beside it."""
    table = Table("check", "status", "found", "fix")
    for result in results:
        table.add_row(result.name, Text(result.status, STYLES[result.status]), result.detail, result.fix)
    return table


def summary_table(summary: GraphSummary) -> Table:
    """Key facts first, then node counts."""
    metadata, image = summary.metadata, summary.metadata.image
    table = Table(title=summary.model, show_header=False)
    series = {key: metadata.architecture[key] for key in ("hops", "power_iterations") if key in metadata.architecture}
    rows = {
        "variant": f"{metadata.variant} ({metadata.form}), {metadata.dtype}"
        + "".join(f", {key} {value}" for key, value in series.items()),
        "image": f"{image.channels} x {image.height} x {image.width}",
        "inputs": ", ".join(f"{name}: {kind}" for name, kind in summary.inputs.items()),
        "outputs": ", ".join(f"{name}: {kind}" for name, kind in summary.outputs.items()),
        "classes": f"{len(metadata.classes)}: {', '.join(metadata.classes[:10])}"
        + (", ..." if len(metadata.classes) > 10 else ""),
        "parameters": f"{summary.parameters:,} ({summary.weights_bytes / 1e6:.1f} MB)",
        "FLOPs": f"{summary.flops / 1e9:.3f} G an image: "
        + ", ".join(f"{op} {flops / summary.flops:.1%}" for op, flops in summary.flops_by_op.items()),
        "nodes": ", ".join(f"{count} {op}" for op, count in summary.ops.items()),
        "weights": f"sha256 {metadata.weights_sha256}",
        "written by": f"infsa-deploy {metadata.tool_version}, opset {summary.opset}",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table
