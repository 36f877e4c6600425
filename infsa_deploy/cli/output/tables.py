"""Records as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infsa_deploy.files import format_bytes
from infsa_deploy.records.export import ExportReport, GraphSummary
from infsa_deploy.records.model import CheckResult
from infsa_deploy.records.validation import (
    Divergence,
    LayerDifference,
    OutputComparison,
    PairComparison,
    ValidationReport,
)
from infsa_deploy.runtime.memory import describe_need

STYLES = {"ok": "green", "absent": "yellow", "problem": "red"}


def print_validation(
    reports: Sequence[ValidationReport], pairs: Sequence[PairComparison], found: Divergence | None
) -> None:
    """A table a model, one of the pairs, and where the layers part, as far as there are any."""
    for report in reports:
        Console().print(comparison_table(report))
    if pairs:
        Console().print(pairs_table(pairs))
    for line in divergence_lines(found) if found else ():
        click.echo(line)


def comparison_table(report: ValidationReport) -> Table:
    """One column an output and set of inputs."""
    title = f"{report.model}: {report.runtime}, {report.dtype}, against the reference in float64"
    rewrite = f"\nFAIL: {report.rewrite}" if report.rewrite else ""
    table = Table(title=title, caption=f"yardstick: {report.yardstick}{rewrite}")
    table.add_column("")
    for c in report.comparisons:
        table.add_column(f"{c.output}, {c.images} {c.inputs}", justify="right")
    columns = [_comparison_column(c) for c in report.comparisons]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _comparison_column(c: OutputComparison) -> dict[str, Text]:
    needed = c.rms / c.yardstick_rms if c.yardstick_rms else float("inf") if c.rms else 0.0
    agreement = "-" if c.top1_agreement is None else f"{c.top1_agreement:.1%}"
    result = Text("pass", "green") if c.passed else Text("FAIL" if c.plausible else "FAIL: no yardstick", "red")
    return {
        "root mean square error": Text(f"{c.rms:.3g}"),
        "yardstick's": Text(f"{c.yardstick_rms:.3g}"),
        "allowed": Text(f"{c.rms_bound:.3g}"),
        "needed": Text(f"{needed:.2f}x yardstick"),
        "largest error": Text(f"{c.max_abs:.3g}"),
        "allowed of one image": Text(f"{c.bound:.3g}"),
        "relative to the largest output": Text(f"{c.relative:.3g}"),
        "smallest cosine": Text(f"{c.cosine:.9f}"),
        "top-1 agreement": Text(agreement),
        "left out, on an edge": Text(str(c.edges)),
        "result": result,
    }


def pairs_table(pairs: Sequence[PairComparison]) -> Table:
    """One row a pair of artefacts and output."""
    table = folding_table("first", "second", "output", "largest difference", "top-1 agreement")
    for pair in pairs:
        table.add_row(pair.first, pair.second, pair.output, f"{pair.max_abs:.3g}", f"{pair.top1_agreement:.1%}")
    return table


def divergence_lines(divergence: Divergence) -> list[str]:
    """Where two models part, in one or two sentences."""
    lines = [f"{divergence.candidate} against {divergence.base}: {divergence.layers} layers compared"]
    if divergence.first is None:
        return [*lines, f"no layer leaves the bound; nearest to it: {_layer(divergence.worst)}"]
    return [*lines, f"first to leave the bound: {_layer(divergence.first)}"]


def _layer(layer: LayerDifference) -> str:
    tensor = f"tensor {layer.tensor!r}" if layer.tensor else "no tensor of its shape"
    place = f"{layer.op} {layer.node!r}, {tensor}"
    if layer.relative is None:
        return f"{place}{', which is not finite' if layer.tensor else ''}"
    return f"{place}, off by {layer.relative:.3g} of its root mean square where {layer.bound_relative:.3g} is allowed"


def checks_table(results: list[CheckResult]) -> Table:
    """One row a check, its fix below what was found."""
    table = folding_table("check", "status", "found")
    for result in results:
        found = Text(result.detail)
        if result.fix:
            found.append(f"\nfix: {result.fix}", "bold")
        table.add_row(result.name, Text(result.status, STYLES[result.status]), found)
    return table


def summary_table(summary: GraphSummary) -> Table:
    """One fact a row."""
    metadata, image = summary.metadata, summary.metadata.image
    classes, shown = metadata.classes, ", ".join(metadata.classes[:10])
    series = {key: metadata.architecture.get(key, 1) for key in ("hops", "power_iterations")}
    repeated = "".join(f", {key} {value}" for key, value in series.items() if value != 1)
    rows = {
        "variant": f"{metadata.variant} ({metadata.form}), {metadata.dtype}{repeated}",
        "image": f"{image.channels} x {image.height} x {image.width}",
        "inputs": _listed(summary.inputs.items()),
        "outputs": _listed(summary.outputs.items()),
        "classes": f"{len(classes)}: {shown}{', ...' if len(classes) > 10 else ''}" if classes else "none",
        "memory": describe_need(metadata, image),
        "parameters": f"{summary.parameters:,} ({format_bytes(summary.weights_bytes)})",
        "FLOPs": _flops_row(summary),
        "bytes moved": _bytes_row(summary),
        "nodes": ", ".join(f"{count} {op}" for op, count in summary.ops.items()),
        "weights": f"sha256 {metadata.weights_sha256}",
        "written by": f"infsa-deploy {metadata.tool_version}, opset {summary.opset}, {format_bytes(summary.bytes)}",
    }
    table = folding_table("", summary.model)
    for name, text in rows.items():
        table.add_row(name, Text(text))
    return table


def narrowing_notes(report: ExportReport) -> list[str]:
    """What a user should know of narrower types: what stayed wide, what was lost, what it did to the answers."""
    notes = []
    if precision := report.precision:
        sizes = f"{format_bytes(precision.weights_bytes_before)} -> {format_bytes(precision.weights_bytes_after)}"
        kept = len(precision.kept_fp32)
        notes.append(f"{precision.dtype}: {precision.weights} weights, {sizes}; {kept} nodes stay in fp32")
        for loss in precision.losses:
            lost = f"{loss.to_zero} of {loss.elements} elements became zero, {loss.saturated} were cut to the largest"
            notes.append(f"warning: weight {loss.name}: {lost}")
    if int8 := report.quantization:
        products = f"{int8.products - len(int8.kept_float)} of {int8.products} products"
        agreement = f"top-1 agreement with fp32 {int8.top1_agreement:.1%} on {int8.images} images"
        notes.append(f"int8 ({int8.kind}): {products}; logits off by {int8.relative_error:.2%}, {agreement}")
        if int8.accuracy_before is not None and int8.accuracy_after is not None:
            notes.append(f"digits test set: fp32 {int8.accuracy_before:.1%}, int8 {int8.accuracy_after:.1%}")
        notes += [f"kept in float: {name} ({int8.error_alone[name]:.2%} alone)" for name in int8.kept_float]
        notes.append("int8 is not faster everywhere: infsa-deploy bench says whether it is here")
    return notes


def _flops_row(summary: GraphSummary) -> str:
    if summary.flops is None:
        return "not counted: the graph works in tiles; the untiled export has the same"
    shares = ", ".join(f"{op} {flops / summary.flops:.1%}" for op, flops in summary.flops_by_op.items())
    return f"{summary.flops / 1e9:.3f} G an image: {shares}"


def _bytes_row(summary: GraphSummary) -> str:
    if summary.bytes_moved is None:
        return "not counted: the graph works in tiles"
    parts = ", ".join(f"{kind} {format_bytes(count)}" for kind, count in summary.bytes_moved.items())
    return f"{format_bytes(sum(summary.bytes_moved.values()))} an image at least: {parts}"


def _listed(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in pairs)


def folding_table(*headings: str) -> Table:
    """An empty table whose cells wrap."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
