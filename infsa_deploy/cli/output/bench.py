"""Benchmark results and progress in a terminal of 80 columns, and results as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from infsa_deploy.records.bench import Cell, Row
from infsa_deploy.records.results_file import Results
from infsa_deploy.records.round_statistics import (
    cell_warnings,
    latency,
    median_interval,
    paired_ratios,
    row_warnings,
    times_as_fast,
)
from infsa_deploy.report.tables import ABSENT, DOUBTFUL, cell_table

COLUMNS = ("contender", "p50 ms", "images/s", "x eager", "CV", "peak memory", "x floor", "J/image")
SHORT = {"p50 ms": "ms", "peak memory": "memory"}


@contextmanager
def bench_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar over cells on stderr; yield what to call with the point in hand, cells done, and cells in all."""
    columns = (SpinnerColumn(), BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show(text: str, done: int, total: int) -> None:
            progress.update(task, description=text, completed=done, total=total or None)

        yield show


def print_cells(results: Results) -> None:
    """Print the table of each cell, and how many threads they ran on."""
    console = Console()
    for cell in results.cells:
        console.print(terminal_table(results, cell))
    run = results.run_of(results.cells[-1])
    console.print(f"threads: {run.settings.threads}, on {run.machine.cores} cores")


def terminal_table(results: Results, cell: Cell) -> Table:
    """The columns of a cell's table that fit into a terminal."""
    whole = cell_table(results, cell)
    shown = [place for place, heading in enumerate(whole.headings) if heading in COLUMNS]
    if all(row[whole.headings.index("J/image")] == ABSENT for row in whole.rows):
        shown.remove(whole.headings.index("J/image"))
    table = Table(
        title=f"{cell.model}, {cell.size}, batch {cell.batch}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    for place in shown:
        heading = whole.headings[place]
        table.add_column(SHORT.get(heading, heading), justify="right" if place else "left", overflow="fold")
    for row in whole.rows:
        table.add_row(*(Text(row[place]) for place in shown))
    notes = (Text(note, "bold yellow" if note.startswith(DOUBTFUL) else "") for note in whole.notes)
    table.caption, table.caption_justify = Text("\n").join(notes), "left"
    return table


def as_json(results: Results) -> str:
    """Render the cells with their figures and the warnings about them; the times of single calls stay in the file."""
    plain: list[dict[str, Any]] = []
    for cell in results.cells:
        rows = [_figures(row, cell, results) for row in cell.rows]
        plain.append(asdict(cell) | {"rows": rows, "warnings": cell_warnings(cell, results.run_of(cell))})
    return json.dumps(plain, indent=2, allow_nan=False)


def _figures(row: Row, cell: Cell, results: Results) -> dict[str, Any]:
    times, ceilings = latency(row, cell.batch), results.ceilings_of(cell)
    floor = row.work.floor(ceilings.flops_per_s, ceilings.bytes_per_s) if row.work and ceilings else None
    facts = asdict(row)
    del facts["rounds_ms"]
    return facts | {
        "latency": times and asdict(times),
        "speedup_to_eager": times_as_fast(cell.rows[0], row),
        "speedup_interval": median_interval(paired_ratios(cell.rows[0], row)),
        "floor": floor and asdict(floor) | {"achieved_over_floor": times.p50_ms / floor.floor_ms if times else None},
        "warnings": row_warnings(row, cell),
    }
