"""From results files to a report on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from infsa_deploy.errors import ModelError
from infsa_deploy.files import check_apart, written_whole
from infsa_deploy.records.bench import Cell, Run, Settings
from infsa_deploy.records.results_file import Results, read
from infsa_deploy.report import figures, paper, tables
from infsa_deploy.report.document import Document, Figure, Section, Table
from infsa_deploy.report.render import to_html, to_markdown

TITLE = "Benchmark of infsa-deploy"
READING = (
    "Each contender has a process of its own. In each round every contender has one turn, in a random order. "
    "The number of rounds follows from a time budget and was fixed before the first; no round was left out. "
    "Times are of whole calls, arrays in and arrays out. "
    "x eager is the median over the rounds of eager's median time over the contender's median time in the same round; "
    "in brackets, its 95 % interval by the percentile bootstrap over rounds, where there are 6 or more. "
    "An exclamation mark means that there is a warning about the figures below the table. "
    "CV is standard deviation over mean of all calls; spread is the interquartile range over the median. "
    "Peak memory is, on a CPU, of the contender's own process while it ran, its libraries and weights included; on a "
    "GPU, of PyTorch's tensors there, and a dash for other runtimes, which do not tell. "
    "x floor is the time over the least that the work can take at the ceilings measured in the same run; a little "
    "below 1, the machine was faster than while they were measured. "
    "p90 needs 10 calls and p99 needs 100; a dash means not measured. "
    "differs by: largest difference of the logits from eager's, over the largest logit, on one input."
)
QUICK = "QUICK RUN: the rounds were few and short, so these numbers are rough."


def write_report(files: Sequence[Path], folder: Path) -> list[Path]:
    """Write `report.md`, its figures, and `report.html` to `folder`, which is made; returns their paths.

    Raises:
        ModelError: a file is missing, is no results file, or holds no measured cell.
        UsageError, HostError: the folder cannot be written, or a file of the report would replace one of `files`.
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
        check_apart(written, files)
    return sorted(written)


def compose(results: Results, folder: Path) -> Document:
    """The report of `results`; its figures are drawn into `folder`."""
    sections = [_machines(results)]
    for number, runs in enumerate(_alike(results)):
        cells = [cell for cell in results.cells if cell.run in runs]
        sections += [_cell_section(results, cell) for cell in cells]
        series = _series(cells)
        sections += [_scaling(group) for group in series if len(group) > 1]
        drawn = [figure for group in series for figure in _drawn(group, runs, results, number, folder)]
        sections.append(Section(f"Figures, {cells[0].run[:19]}", figures=tuple(drawn)))
    return Document(TITLE, tuple(sections))


def _alike(results: Results) -> list[dict[str, Run]]:
    """Runs by their start; those of one machine and the same settings together, as a sweep that was continued."""
    groups: dict[tuple[str, Settings], dict[str, Run]] = {}
    for run in results.measuring_runs:
        groups.setdefault((run.machine.summary, run.settings), {})[run.started] = run
    return list(groups.values())


def _series(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells of one model and batch together, the smallest size first."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.height * cell.width):
        groups.setdefault((cell.model, cell.batch), []).append(cell)
    return list(groups.values())


def _drawn(cells: Sequence[Cell], runs: Mapping[str, Run], results: Results, number: int, folder: Path) -> list[Figure]:
    """The figures of a series; `number` tells its files from those of other machines and settings."""
    by_run = {cell.run: results.ceilings_of(cell) for cell in cells}
    taken = [runs[start] for start in by_run]
    commands = "; ".join(dict.fromkeys(run.command for run in taken))
    name = f"{cells[0].model}_batch{cells[0].batch}" + (f"_{number + 1}" if number else "")
    ceilings = list(filter(None, by_run.values()))
    return figures.draw(cells, ceilings, name, f"{taken[0].machine.summary}. {commands}", folder)


def _machines(results: Results) -> Section:
    runs = results.measuring_runs
    told = [f"{run.started[:19]}: {run.machine.summary}; {_setting(run)}; {_load(run)}." for run in runs]
    told += _packages(runs)
    told += [f"Energy: {reason}" for reason in sorted({run.energy.reason for run in runs if run.energy.reason})]
    commands = tuple(dict.fromkeys(run.command for run in runs))
    return Section("Machine, command, ceilings", (READING, *told), commands, (tables.ceilings_table(results),))


def _packages(runs: Sequence[Run]) -> list[str]:
    """Versions of packages; where runs had others, with the runs that had them."""
    starts: dict[str, list[str]] = {}
    for run in runs:
        versions = ", ".join(f"{name} {version}" for name, version in run.machine.packages.items())
        starts.setdefault(versions, []).append(run.started[:19])
    if len(starts) == 1:
        return [f"{versions}." for versions in starts]
    return [f"{', '.join(found)}: {versions}." for versions, found in starts.items()]


def _setting(run: Run) -> str:
    return f"on {run.settings.device}, {run.settings.threads} threads"


def _load(run: Run) -> str:
    return f"load average {run.load_average:.1f} before it began, clock governor {run.governor or 'unknown'}"


def _cell_section(results: Results, cell: Cell) -> Section:
    run = results.run_of(cell)
    table, about = tables.cell_table(results, cell), (f"{row.contender}: {row.about}." for row in cell.rows)
    shown = [replace(table, notes=(*table.notes, *about))]
    if predicted := tables.prediction_table(cell):
        shown.append(predicted)
    if cited := paper.beside(cell, run.machine):
        rows = tuple((f.name, f"{f.images_per_s:g}", f"{f.j_per_image:g}") for f in cited)
        shown.append(Table(("the paper's, arXiv:2603.00175", "images/s", "J/image"), rows))
    tokens = f", {cell.tokens} tokens" if cell.tokens else ""
    title = f"{cell.model}, {cell.size}, batch {cell.batch}{tokens}"
    told = (f"Run of {run.started[:19]}.", *([QUICK] if run.settings.quick else []))
    return Section(title, told, tables=tuple(shown))


def _scaling(cells: Sequence[Cell]) -> Section:
    title = f"Scaling of {cells[0].model}, batch {cells[0].batch}"
    return Section(title, tables=(tables.scaling_table(cells),))
