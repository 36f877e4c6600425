"""A benchmark from the request to the results file, which it extends: cells that are there are not measured again."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from infsa_deploy import results_file
from infsa_deploy.bench import contenders
from infsa_deploy.bench.cell import measure_cell
from infsa_deploy.bench.child import PointEnded
from infsa_deploy.bench.datasheets import datasheet
from infsa_deploy.bench.machine import this_machine
from infsa_deploy.bench.plan import CellPlan, GivenFile, Size, plan_files, plan_models
from infsa_deploy.bench.prepare import Bench, Workshop
from infsa_deploy.bench.quietness import free_cores
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.files import check_target
from infsa_deploy.measurements import FAILED, Ceilings, Cell, EnergySource, Machine, Run, Settings, Validation
from infsa_deploy.records import ModelMetadata, decode
from infsa_deploy.results_file import Results
from infsa_deploy.version import __version__

DEFAULT_MODEL = "infvit_linear_4l"


@dataclass(frozen=True)
class Request:
    """What was asked for: files or models of the zoo, at sizes (default: their own) and batches.

    Attributes:
        quick: small ceilings; the rest of what makes a run quick is in `settings`.
        predict: devices of `datasheets` to give floors for.
        output: the results file.
        command: what was typed, for the record.
        threads_asked: whether the number of threads was; if not, it is found when the run begins.
    """

    files: tuple[Path, ...]
    models: tuple[str, ...]
    sizes: tuple[Size, ...]
    batches: tuple[int, ...]
    contenders: tuple[str, ...]
    baselines: bool
    settings: Settings
    quick: bool
    predict: tuple[str, ...]
    output: Path
    command: str
    threads_asked: bool = True


def run_bench(request: Request, progress: Callable[[str, int, int], None]) -> Results:
    """Measure what `request` asks for and the results file lacks; returns what the file then holds of it.

    Args:
        progress: called with the point in hand, cells done, and cells in all.

    Raises:
        UsageError: unknown names; a results file of another machine or other settings; a folder that is not there.
        ModelError: a given file cannot be read.
    """
    for device in request.predict:
        datasheet(device)
    check_target(request.output, request.files)
    machine = this_machine()
    with _work_folder(request.output) as folder:
        known = _known(request)
        request = _with_threads(request, known)
        _check_continues(request, known, machine)
        plans = _plans(request, progress)
        missing = [plan for plan in plans if not _measured(plan, known)]
        if missing:
            bench = _begin(request, machine, known, folder, progress)
            for plan in missing:
                done, total = len(plans) - len(missing) + missing.index(plan), len(plans)
                bench.progress = lambda text, done=done, total=total: progress(text, done, total)  # type: ignore[misc]
                results_file.append(request.output, measure_cell(plan, bench))
    return _of(plans, results_file.read([request.output]))


def failures(cells: Sequence[Cell]) -> list[str]:
    """The points that ended for a reason that is no result, such as a crash: `point: reason`."""
    return [
        f"{cell.model} {cell.size} batch {cell.batch}, {row.contender}: {row.reason}"
        for cell in cells
        for row in cell.rows
        if row.status == FAILED
    ]


def _known(request: Request) -> Results:
    """What the results file has; of its runs those that measured a cell, which others have to agree with."""
    if not request.output.exists():
        return Results((), (), (), ())
    found = results_file.read([request.output])
    return replace(found, runs=found.measuring_runs)


@contextmanager
def _work_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output`, of one process at a time; what a killed one left is taken over, and removed at the end.

    Raises:
        UsageError: another process works there.
    """
    folder = output.with_name(f".{output.name}.work")
    folder.mkdir(exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        why = "two at once would measure the same cells, each slowed by the other."
        raise UsageError(f"another benchmark is writing {output}.", why, "wait until it is done.") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _with_threads(request: Request, known: Results) -> Request:
    """With as many threads as the file that is continued has, or as others leave cores free, where none were asked."""
    if request.threads_asked:
        return request
    threads = known.runs[-1].settings.threads if known.runs else free_cores()
    return replace(request, settings=replace(request.settings, threads=threads))


def _check_continues(request: Request, known: Results, machine: Machine) -> None:
    for run in known.runs:
        if run.machine.summary != machine.summary:
            raise UsageError(
                f"{request.output} holds results of another machine.", run.machine.summary, "give another file with -o."
            )
        if run.settings != request.settings:
            raise UsageError(
                f"{request.output} holds results of other settings.",
                f"it has {run.settings}; this run has {request.settings}.",
                "give the same options to continue, or another file with -o.",
            )


def _plans(request: Request, progress: Callable[[str, int, int], None]) -> list[CellPlan]:
    chosen = contenders.choose(request.contenders, baselines=request.baselines, files=bool(request.files))
    workshop = Workshop(request.settings)

    def own_size(source: ModelSource) -> Size:
        progress(f"looking up the size of {source.model}", 0, 0)
        _, height, width = _ask(workshop, "trace", source=asdict(source), program="reference", batch=1)["image"]
        return height, width

    try:
        files = [_given(workshop, path) for path in dict.fromkeys(request.files)]
        models = request.models or (() if files else (DEFAULT_MODEL,))
        cells = plan_files(files, request.sizes, request.batches, chosen)
        return cells + plan_models(models, request.sizes, request.batches, chosen, own_size)
    finally:
        workshop.close()


def _given(workshop: Workshop, path: Path) -> GivenFile:
    found = _ask(workshop, "describe", path=str(path))
    return GivenFile(path, decode(ModelMetadata, found["metadata"]), found["sha256"])


def _ask(workshop: Workshop, do: str, **arguments: Any) -> Any:
    try:
        return workshop.ask(do, **arguments)
    except PointEnded as ended:
        raise ModelError(f"{do} failed.", ended.reason, "check the model's name or file.") from ended


def _measured(plan: CellPlan, known: Results) -> bool:
    """Whether the file has the cell with everyone who is now asked for, given files as they are now.

    A cell is measured whole, or not at all.
    """
    for cell in known.cells:
        hashes = {row.contender: row.file_sha256 for row in cell.rows}
        same = (who.name in hashes and who.sha256 in (None, hashes[who.name]) for who in plan.contenders)
        if cell.key == plan.key and all(same):
            return True
    return False


def _begin(
    request: Request, machine: Machine, known: Results, folder: Path, progress: Callable[[str, int, int], None]
) -> Bench:
    """Look for energy, record the run, and measure its ceilings."""
    settings, started = request.settings, datetime.now(timezone.utc).isoformat(timespec="microseconds")
    load_average = os.getloadavg()[0]
    workshop = Workshop(settings)
    try:
        energy = EnergySource(None, None, None, "energy was not asked for")
        if settings.energy:
            progress("looking for an energy counter", 0, 0)
            energy = decode(EnergySource, _ask(workshop, "look for energy", device=settings.device))
        run = Run(started, request.command, __version__, machine, settings, energy, load_average)
        results_file.append(request.output, run)
        progress("measuring the ceilings of the machine", 0, 0)
        asked = {"run": started, "threads": settings.threads, "device": settings.device, "quick": request.quick}
        ceilings = decode(Ceilings, _ask(workshop, "ceilings", **asked))
        results_file.append(request.output, ceilings)
    finally:
        workshop.close()

    def remember(validation: Validation) -> None:
        results_file.append(request.output, validation)

    validations = {validation.sha256: validation for validation in known.validations}
    return Bench(started, settings, folder, energy, ceilings, request.predict, validations, remember, lambda text: None)


def _of(plans: list[CellPlan], results: Results) -> Results:
    keys = {plan.key for plan in plans}
    cells = tuple(cell for cell in results.cells if cell.key in keys)
    return Results(results.runs, results.ceilings, results.validations, cells)
