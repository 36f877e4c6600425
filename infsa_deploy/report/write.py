"""From results files to a report on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infsa_deploy.errors import ModelError
from infsa_deploy.files import written_whole
from infsa_deploy.measurements import Cell, Run
from infsa_deploy.report import figures, paper, tables
from infsa_deploy.report.document import Document, Section, Table
from infsa_deploy.report.render import to_html, to_markdown
from infsa_deploy.results_file import Results, read

TITLE = "Benchmark of infsa-deploy"
READING = (
    "Times are of whole calls, arrays in and arrays out, one process a contender, taking turns in rounds. "
    "x eager is the median over the rounds of eager's time over the contender's in the same round. "
    "CV is standard deviation over mean of all calls: above 10 %, something else was using the machine. "
    "Peak memory is of the contender's own process while it ran, its libraries and weights included. "
    "x floor is the time over the least that the work can take at the ceilings measured in the same run. "
    "p90 needs 10 calls and p99 needs 100; a dash means not measured. "
    "differs by: largest difference of the logits from eager's, over the largest logit, on one input."
)
PREDICTION = "Predicted from datasheets, for devices that are not here; not measured."


def write_report(files: Sequence[Path], folder: Path) -> list[Path]:
    """Write `report.md`, its figures, and `report.html` to `folder`, which is made; returns their paths.

    Raises:
        ModelError: a file is missing, is no results file, or holds no measured cell.
        UsageError, HostError: the folder cannot be written.
    """
    results = read(files)
    if not results.cells:
        names = ", ".join(map(str, files))
        raise ModelError(
            f"{names} holds no measurements.", "the benchmark was stopped before its first cell.", "run it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    with written_whole(page) as scratch:
        document = compose(results, scratch.parent)
        (scratch.parent / "report.md").write_text(to_markdown(document), encoding="utf-8")
        scratch.write_text(to_html(document, scratch.parent), encoding="utf-8")
        written = [folder / item.name for item in scratch.parent.iterdir()]
    return sorted(written)


def compose(results: Results, folder: Path) -> Document:
    """The report of `results`; its figures are drawn into `folder`."""
    sections = [_machines(results)]
    for run in _measuring(results):
        cells = [cell for cell in results.cells if cell.run == run.started]
        ceilings = results.ceilings_of(cells[0])
        sections += [_cell_section(cell, run) for cell in cells]
        sections += _scaling(cells)
        drawn = figures.draw_all(cells, ceilings, f"{run.machine.summary}. {run.command}", folder)
        sections.append(Section(f"Figures, {run.started[:19]}", figures=tuple(drawn)))
    return Document(TITLE, tuple(sections))


def _measuring(results: Results) -> list[Run]:
    return [run for run in results.runs if any(cell.run == run.started for cell in results.cells)]


def _machines(results: Results) -> Section:
    runs = _measuring(results)
    told = [f"{run.started[:19]}: {run.machine.summary}; {run.settings.threads} threads; {_load(run)}." for run in runs]
    told += [", ".join(f"{name} {version}" for name, version in runs[-1].machine.packages.items()) + "."]
    told += [f"Energy: {reason}" for reason in sorted({run.energy.reason for run in runs if run.energy.reason})]
    commands = tuple(dict.fromkeys(run.command for run in runs))
    return Section("Machine, command, ceilings", (READING, *told), commands, (tables.ceilings_table(results),))


def _load(run: Run) -> str:
    return f"load average {run.load_average:.1f} when it began"


def _cell_section(cell: Cell, run: Run) -> Section:
    shown = [tables.cell_table(cell)]
    words: tuple[str, ...] = ()
    predicted = tables.prediction_table(cell)
    if predicted:
        shown.append(predicted)
        words = (PREDICTION,)
    if cited := paper.beside(cell, run.machine):
        rows = tuple((f.name, f"{f.images_per_s:g}", f"{f.j_per_image:g}") for f in cited)
        shown.append(Table(("the paper's, arXiv:2603.00175", "images/s", "J/image"), rows))
    tokens = f", {cell.tokens} tokens" if cell.tokens else ""
    title = f"{cell.model}, {cell.height}x{cell.width}, batch {cell.batch}{tokens}"
    return Section(title, words, tables=tuple(shown))


def _scaling(cells: Sequence[Cell]) -> list[Section]:
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.batch), []).append(cell)
    return [
        Section(f"Scaling of {model}, batch {batch}", tables=(tables.scaling_table(group),))
        for (model, batch), group in groups.items()
        if len(group) > 1
    ]
