"""A benchmark from the request to the results file, which it extends: cells that are there are not measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from infsa_deploy.bench import contenders, environment
from infsa_deploy.bench.plan import CellPlan, GivenFile, Size, plan_files, plan_models
from infsa_deploy.bench.prepare import Entry, Preparation
from infsa_deploy.bench.process import Child, PointEnded, TraceRequest
from infsa_deploy.bench.rounds import Rounds
from infsa_deploy.bench.worker import Worker
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import DeployError
from infsa_deploy.files import artefact_sha256, check_target
from infsa_deploy.records import results_file
from infsa_deploy.records.bench import OK, Cell, EnergySource, Row, Run, Settings
from infsa_deploy.records.datasheets import datasheet, predict
from infsa_deploy.records.results_file import Results
from infsa_deploy.runtime.sessions.artefact import read_artefact_metadata
from infsa_deploy.version import __version__

DEFAULT_MODEL = "infvit_linear_4l"
NO_ENERGY = EnergySource(None, None, None, "energy was not asked for")
Progress = Callable[..., None]  # is told `text`, the point in hand, `done` and `total`, the numbers of cells


@dataclass(frozen=True)
class BenchRequest:
    """Files or models of the zoo to measure, at sizes (default: their own) and batches, as typed in `command`.

    `predict` are devices of `datasheets.DATASHEETS` to give floors for, and `output` is the results file.
    """

    files: tuple[Path, ...]
    models: tuple[str, ...]
    sizes: tuple[Size, ...]
    batches: tuple[int, ...]
    contenders: tuple[str, ...]
    baselines: bool
    settings: Settings
    predict: tuple[str, ...]
    output: Path
    command: str


def run_bench(request: BenchRequest, progress: Progress) -> Results:
    """Measure what `request` asks for and the results file lacks; return what the file then holds of it.

    Raises:
        UsageError: unknown names; a results file of another machine or other settings; a folder that is not there.
        ModelError: a given file cannot be read.
        HostError, ModuleNotFoundError: this machine lacks what every run needs.
    """
    for device in request.predict:
        datasheet(device)
    check_target(request.output, request.files)
    machine, settings = environment.this_machine(), request.settings
    with results_file.claimed(request.output) as folder, closing(Child(settings)) as child, _told_as_they_are():
        known = results_file.read_to_continue(request.output, machine, settings)
        plans = _plans(request, child, progress)
        missing = [plan for plan in plans if not known.has(plan.key, {c.name: c.sha256 for c in plan.contenders})]
        if missing:
            run = _begin(request, child, progress)
            validations = {validation.sha256: validation for validation in known.validations}
            remember = partial(results_file.append, request.output)
            preparation = Preparation(child, settings, folder, validations, remember)
        for number, plan in enumerate(missing, len(plans) - len(missing)):
            note = partial(progress, done=number, total=len(plans))
            results_file.append(request.output, _measure_cell(plan, run, preparation, request.predict, note))
    results = results_file.read([request.output])
    keys = {plan.key for plan in plans}
    return replace(results, cells=tuple(cell for cell in results.cells if cell.key in keys))


@contextmanager
def _told_as_they_are() -> Iterator[None]:
    """Raise the error that ended a step which no run can do without."""
    try:
        yield
    except PointEnded as ended:
        raise ended.error or DeployError("the benchmark cannot begin.", ended.reason, "none is known.") from ended


def _plans(request: BenchRequest, child: Child, progress: Progress) -> list[CellPlan]:
    chosen = contenders.choose(request.contenders, baselines=request.baselines, files=bool(request.files))
    paths = dict.fromkeys(request.files)
    files = [GivenFile(path, read_artefact_metadata(path), artefact_sha256(path)) for path in paths]
    models = request.models or (() if files else (DEFAULT_MODEL,))

    def own_size(source: ModelSource) -> Size:
        progress(f"looking up the size of {source.model}", 0, 0)
        return child.ask(Worker.trace, TraceRequest(source, "reference", 1)).image[1:]

    cells = plan_files(files, request.sizes, request.batches, chosen)
    return cells + plan_models(models, request.sizes, request.batches, chosen, own_size)


def _begin(request: BenchRequest, child: Child, progress: Progress) -> Run:
    """Record a run and its ceilings."""
    settings, started = request.settings, datetime.now(timezone.utc).isoformat(timespec="microseconds")
    conditions = os.getloadavg()[0], environment.governor()
    progress("looking for an energy counter", 0, 0)
    energy = child.ask(Worker.find_energy, settings.device) if settings.energy else NO_ENERGY
    run = Run(started, request.command, __version__, environment.this_machine(), settings, energy, *conditions)
    progress("measuring the ceilings of the machine", 0, 0)
    ceilings = child.ask(Worker.measure_ceilings, started)
    for record in (run, ceilings):
        results_file.append(request.output, record)
    return run


def _measure_cell(
    plan: CellPlan, run: Run, preparation: Preparation, devices: Sequence[str], progress: Progress
) -> Cell:
    """Measure one cell; whatever happens to a contender is a row."""

    def note(text: str) -> None:
        progress(f"{plan.title}: {text}")

    entries = preparation.cell(plan, note)
    rounds, before = Rounds(entries, run.settings, note), environment.cpu_ticks()
    rounds.run(run.energy)
    steal, load = environment.steal_share(before, environment.cpu_ticks()), os.getloadavg()[0]
    rows = tuple(_row(entry, entries[0], devices) for entry in entries)
    where = (plan.model, plan.source, plan.height, plan.width, plan.batch)
    conditions = (rounds.count, *steal, load, rounds.remarks)
    return Cell(run.started, *where, entries[0].tokens, rows, *conditions)


def _row(entry: Entry, reference: Entry, devices: Sequence[str]) -> Row:
    contender, opened, ended, work = entry.contender, entry.opened, entry.ended, entry.work
    return Row(
        contender=contender.name,
        about=contender.about,
        runtime=opened.runtime if opened else contender.runtime,
        dtype=work.main_type if work and contender.dtype == "file" else contender.dtype,
        status=ended.status if ended else OK,
        reason=ended.reason if ended else None,
        rounds_ms=tuple(entry.rounds_ms),
        warm_up_calls=opened.warm_up_calls if opened else None,
        stable=opened.stable if opened else None,
        difference_to_eager=_difference(entry, reference),
        peak_memory_bytes=entry.peak_bytes,
        work=work,
        predicted=tuple(found for device in devices if work and (found := predict(work, device))),
        energy=entry.energy,
        energy_reason=entry.energy_reason,
        file_sha256=entry.sha256,
    )


def _difference(entry: Entry, reference: Entry) -> float | None:
    """Largest difference of the logits over the largest of the reference; None for another model."""
    if entry.contender.program != "reference" or not entry.opened or not reference.opened:
        return None
    exact = reference.opened.logits
    apart = max(abs(a - b) for a, b in zip(entry.opened.logits, exact, strict=True))
    return apart / max(map(abs, exact)) if any(exact) else None
