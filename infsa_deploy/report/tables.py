"""Results as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from infsa_deploy.measurements import OK, Cell, Row
from infsa_deploy.report.document import Table
from infsa_deploy.results_file import Results
from infsa_deploy.sizes import format_bytes

ABSENT = "-"
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


def cell_table(cell: Cell) -> Table:
    """Every contender of one cell; what did not run says so, with its reason in the notes."""
    notes = [f"{row.contender}: {row.about}." for row in cell.rows]
    notes += [f"{row.contender}: {row.status}: {row.reason}." for row in cell.rows if row.status != OK]
    notes += [f"{quiet[0].upper()}{quiet[1:]}." for quiet in (cell.others, cell.core_distance) if quiet]
    notes += sorted({f"J/image: {row.energy_reason}" for row in cell.rows if row.energy_reason})
    return Table(HEADINGS, tuple(_cells(row) for row in cell.rows), tuple(notes))


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


def _cells(row: Row) -> tuple[str, ...]:
    if row.status != OK or row.latency is None:
        return (row.contender, row.status, *[ABSENT] * (len(HEADINGS) - 2))
    latency, energy = row.latency, row.energy
    return (
        row.contender,
        _number(latency.p50_ms),
        _number(latency.p90_ms),
        _number(latency.p99_ms),
        f"{latency.cv:.1%}",
        _number(latency.images_per_s),
        _times_eager(row),
        ABSENT if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
        ABSENT if row.work is None else _number(row.work.flops / 1e9),
        ABSENT if row.floor is None else f"{row.floor.achieved_over_floor:.2f}",
        _number(energy.gross_j_per_image if energy else None),
        _number(energy.net_j_per_image if energy else None),
        ABSENT if row.difference_to_eager is None else f"{row.difference_to_eager:.1e}",
    )


def _times_eager(row: Row) -> str:
    if row.speedup_to_eager is None:
        return ABSENT
    interval = row.speedup_interval
    return f"{row.speedup_to_eager:.2f}" + (f" ({interval[0]:.2f}-{interval[1]:.2f})" if interval else "")


def _per_token(cell: Cell, name: str) -> str:
    row = next((row for row in cell.rows if row.contender == name), None)
    if row is None or cell.tokens is None:
        return ABSENT
    if row.latency is None:
        return row.status
    return _number(1000 * row.latency.p50_ms / (cell.tokens * cell.batch))


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
