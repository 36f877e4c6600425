"""Benchmark results and progress in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from infsa_deploy.measurements import OK, Cell, Row
from infsa_deploy.results_file import Results
from infsa_deploy.sizes import format_bytes


@contextmanager
def bench_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar over cells on stderr; yields what to call with the point in hand, cells done, and cells in all."""
    columns = (SpinnerColumn(), BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show(text: str, done: int, total: int) -> None:
            progress.update(task, description=text, completed=done, total=total or None)

        yield show


def print_cells(results: Results) -> None:
    """The table of each, and how many threads they ran on."""
    console = Console()
    for cell in results.cells:
        console.print(cells_table(cell))
    run = results.run_of(results.cells[-1])
    console.print(f"threads: {run.settings.threads}, on {run.machine.cores} cores")


def cells_table(cell: Cell) -> Table:
    """One row a contender."""
    table = Table(title=f"{cell.model}, {cell.size}, batch {cell.batch}")
    table.add_column("contender", overflow="fold")
    energy = any(row.energy for row in cell.rows)
    for heading in ("ms", "images/s", "x eager", "CV", "memory", "x floor", *(["J/image"] if energy else [])):
        table.add_column(heading, justify="right")
    for row in cell.rows:
        if row.status == OK:
            table.add_row(row.contender, *_figures(row), *([_gross(row)] if energy else []))
        else:
            table.add_row(row.contender, Text(row.status, "yellow"))
    notes = [f"{row.contender}: {row.status}: {row.reason}" for row in cell.rows if row.status != OK]
    table.caption = "\n".join(filter(None, [*notes, cell.others, cell.core_distance]))
    table.caption_justify = "left"
    return table


def _figures(row: Row) -> list[str]:
    assert row.latency
    return [
        f"{row.latency.p50_ms:.4g}",
        f"{row.latency.images_per_s:.4g}",
        "-" if row.speedup_to_eager is None else f"{row.speedup_to_eager:.2f}",
        f"{row.latency.cv:.1%}",
        "-" if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
        "-" if row.floor is None else f"{row.floor.achieved_over_floor:.2f}",
    ]


def _gross(row: Row) -> str:
    return f"{row.energy.gross_j_per_image:.3g}" if row.energy else "-"
