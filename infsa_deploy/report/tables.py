"""Results as tables of text, for the report and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from infsa_deploy.files import format_bytes
from infsa_deploy.records.bench import OK, Cell, Row
from infsa_deploy.records.results_file import Results
from infsa_deploy.records.round_statistics import (
    cell_warnings,
    latency,
    median_interval,
    paired_ratios,
    row_warnings,
    times_as_fast,
)
from infsa_deploy.report.document import Table

ABSENT, DOUBTFUL = "-", "!"
PREDICTION = "Predicted from datasheets, for devices that are not here; not measured."
HEADINGS = (
    "contender",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "CV",
    "images/s",
    "x eager",
    "peak memory",
    "GFLOP",
    "x floor",
    "J/image",
    "net J/image",
    "differs by",
)


def cell_table(results: Results, cell: Cell) -> Table:
    """Every contender of one cell; a figure with a warning is marked, and the notes say what the warning is."""
    general = cell_warnings(cell, results.run_of(cell))
    rows = tuple(_cells(row, cell, results, doubtful=bool(general or row_warnings(row, cell))) for row in cell.rows)
    warned = {"all": general} | {row.contender: row_warnings(row, cell) for row in cell.rows}
    notes = [f"{DOUBTFUL} {name}: {'; '.join(warnings)}." for name, warnings in warned.items() if warnings]
    notes += [f"{row.contender}: {row.status}: {row.reason}." for row in cell.rows if row.status != OK]
    notes += [f"{remark[0].upper()}{remark[1:]}." for remark in (*cell.remarks, conditions(cell))]
    notes += sorted({f"J/image: {row.energy_reason}" for row in cell.rows if row.energy_reason})
    return Table(HEADINGS, rows, tuple(notes))


def conditions(cell: Cell) -> str:
    """How many rounds there were, and how busy the machine was."""
    steal = f"unknown ({cell.steal_reason})" if cell.steal_share is None else f"{cell.steal_share:.1%}"
    load = "unknown" if cell.load_average is None else f"{cell.load_average:.1f}"
    return f"{cell.rounds} rounds; load average at their end {load}, CPU time stolen by the hypervisor {steal}"


def prediction_table(cell: Cell) -> Table | None:
    """Predicted floors, one column a device; None where none were asked for."""
    devices = sorted({predicted.device for row in cell.rows for predicted in row.predicted})
    if not devices:
        return None
    rows = []
    for row in cell.rows:
        floors = {predicted.device: predicted for predicted in row.predicted}
        found = (floors.get(device) for device in devices)
        rows.append((row.contender, *(f"{f.predicted_floor_ms:.3g} ({f.bound})" if f else ABSENT for f in found)))
    headings = ("contender", *(f"predicted floor, {device}, ms" for device in devices))
    return Table(headings, tuple(rows), (PREDICTION,))


def scaling_table(cells: Sequence[Cell]) -> Table:
    """Microseconds a token against size, of one model and batch; or what stopped a contender there."""
    names = list(dict.fromkeys(row.contender for cell in cells for row in cell.rows))
    rows = [(name, *(_per_token(cell, name) for cell in cells)) for name in names]
    return Table(("us a token", *(cell.size for cell in cells)), tuple(rows))


def ceilings_table(results: Results) -> Table:
    """What was measured of the machine itself."""
    rows = [
        (f"{run.started[:19]}", kind, f"{rate / 1e9:.4g}", ceilings.method[kind])
        for run in results.runs
        for ceilings in results.ceilings
        if ceilings.run == run.started
        for kind, rate in [*ceilings.flops_per_s.items(), ("copy", ceilings.bytes_per_s)]
    ]
    return Table(("run", "ceiling", "GFLOP/s or GB/s", "measured by"), tuple(rows))


def _cells(row: Row, cell: Cell, results: Results, *, doubtful: bool) -> tuple[str, ...]:
    times, energy, ceilings = latency(row, cell.batch), row.energy, results.ceilings_of(cell)
    if times is None:
        return (row.contender, row.status, *[ABSENT] * (len(HEADINGS) - 2))
    floor = row.work.floor(ceilings.flops_per_s, ceilings.bytes_per_s) if row.work and ceilings else None
    return (
        row.contender,
        _number(times.p50_ms) + (f" {DOUBTFUL}" if doubtful else ""),
        _number(times.p90_ms),
        _number(times.p99_ms),
        f"{times.cv:.1%}",
        _number(times.images_per_s),
        _times_eager(cell.rows[0], row),
        ABSENT if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
        ABSENT if row.work is None else _number(row.work.flops / 1e9),
        ABSENT if floor is None else f"{times.p50_ms / floor.floor_ms:.2f}",
        _number(energy.gross_j_per_image if energy else None),
        _number(energy.net_j_per_image if energy else None),
        ABSENT if row.difference_to_eager is None else f"{row.difference_to_eager:.1e}",
    )


def _times_eager(eager: Row, row: Row) -> str:
    ratio, interval = times_as_fast(eager, row), median_interval(paired_ratios(eager, row))
    if ratio is None:
        return ABSENT
    return f"{ratio:.2f}" + (f" ({interval[0]:.2f}-{interval[1]:.2f})" if interval and row is not eager else "")


def _per_token(cell: Cell, name: str) -> str:
    row = next((row for row in cell.rows if row.contender == name), None)
    if row is None or cell.tokens is None:
        return ABSENT
    times = latency(row, cell.batch)
    return row.status if times is None else _number(1000 * times.p50_ms / (cell.tokens * cell.batch))


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
