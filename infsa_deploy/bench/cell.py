"""Measuring one cell: its contenders made ready, their turns, and the rows that come of it."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from infsa_deploy.bench import roofline
from infsa_deploy.bench.field import Entry, Field
from infsa_deploy.bench.plan import CellPlan
from infsa_deploy.bench.prepare import Bench, Preparation, Workshop
from infsa_deploy.bench.quietness import cpu_times, others_share
from infsa_deploy.bench.statistics import median_interval
from infsa_deploy.measurements import OK, Cell, Energy, Row, Work
from infsa_deploy.records import decode


def measure_cell(plan: CellPlan, bench: Bench) -> Cell:
    """Measure `plan`; whatever happens to a contender is a row."""
    workshop = Workshop(bench.settings)
    preparation = Preparation(plan, bench, workshop)
    try:
        entries = [preparation.entry(contender) for contender in plan.contenders]
    finally:
        workshop.close()

    def progress(phase: str) -> None:
        bench.progress(f"{plan.title}: {phase}")

    before = cpu_times()
    Field([entry for entry in entries if not entry.ended], bench.settings, progress).run(bench.energy)
    share, reason = others_share(before, cpu_times())
    rows = tuple(_row(entry, entries[0], bench) for entry in entries)
    size = (plan.height, plan.width)
    return Cell(bench.run, plan.model, plan.source, *size, plan.batch, preparation.tokens, rows, share, reason)


def _row(entry: Entry, reference: Entry, bench: Bench) -> Row:
    contender = entry.contender
    row = Row(
        contender=contender.name,
        about=contender.about,
        runtime=entry.runtime or contender.runtime,
        dtype=contender.dtype if contender.dtype != "file" else _main_type(entry.work),
        status=OK,
        work=entry.work,
        file_sha256=entry.sha256,
    )
    predicted = (roofline.predict(entry.work, device) for device in bench.predict) if entry.work else ()
    row = replace(row, predicted=tuple(found for found in predicted if found))
    if entry.ended:
        return replace(row, status=entry.ended.status, reason=entry.ended.reason)
    latency = entry.latency
    base = reference if not reference.ended else None
    speedups = entry.speedups_to(base) if base else []
    return replace(
        row,
        latency=latency,
        speedup_to_eager=median(speedups) if speedups else None,
        speedup_interval=median_interval(speedups),
        difference_to_eager=_difference(entry, base) if base else None,
        peak_memory_bytes=entry.peak_bytes,
        floor=roofline.floor(entry.work, bench.ceilings, latency.p50_ms) if entry.work and bench.ceilings else None,
        energy=decode(Energy, entry.energy) if entry.energy else None,
        energy_reason=entry.energy_reason,
    )


def _difference(entry: Entry, reference: Entry) -> float | None:
    if entry.contender.program != "reference":
        return None
    exact = reference.warm_up["logits"]
    largest = max(map(abs, exact))
    apart = max(abs(a - b) for a, b in zip(entry.warm_up["logits"], exact, strict=True))
    return apart / largest if largest else None


def _main_type(work: Work | None) -> str:
    return max(work.flops_by_type, key=lambda kind: work.flops_by_type[kind]) if work else "unknown"
