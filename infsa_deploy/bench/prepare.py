"""What a contender needs before it can run: its cost traced, its file exported and validated, and room for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infsa_deploy.bench import process
from infsa_deploy.bench.contenders import CONTENDERS, Contender
from infsa_deploy.bench.environment import usable_bytes
from infsa_deploy.bench.plan import CellPlan
from infsa_deploy.bench.process import Child, PointEnded, Reply, Request
from infsa_deploy.bench.worker import Worker
from infsa_deploy.config import ModelSource
from infsa_deploy.files import format_bytes
from infsa_deploy.records.bench import REFUSED, Energy, Settings, TraceCost, Validation, Work

Validations = dict[str, Validation]
Remember = Callable[[Validation], None]


@dataclass
class Entry:
    """A contender of a cell: what it needs, what has been measured of it so far, and how it ended if it did."""

    contender: Contender
    sha256: str | None = None
    tokens: int | None = None
    need_bytes: int = 0
    work: Work | None = None
    opening: process.OpenRequest | None = None
    opened: process.Opened | None = None
    rounds_ms: list[tuple[float, ...]] = field(default_factory=list)
    peak_bytes: int | None = None
    energy: Energy | None = None
    energy_reason: str | None = None
    ended: PointEnded | None = None


class Preparation:
    """Prepares the cells of a run in `child`. Files exported to `folder` stay as long as cells have the same source.

    `known` is what was found of files, by hash, and `remember` is called with what is found of others.
    """

    def __init__(self, child: Child, settings: Settings, folder: Path, known: Validations, remember: Remember) -> None:
        self._child, self._settings, self._folder = child, settings, folder / "exports"
        self._validations, self._remember = known, remember
        self._source: ModelSource | None = None
        self._replies: dict[Any, Any] = {}  # for that source, by job and request

    def cell(self, plan: CellPlan, progress: Callable[[str], None]) -> list[Entry]:
        """Prepare the contenders of `plan`, in its order; the child is closed, to leave its memory to them."""
        if plan.source != self._source:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            self._source, self._replies = plan.source, {}
        entries = [Entry(contender, contender.sha256) for contender in plan.contenders]
        for entry in entries:
            progress(f"{entry.contender.name}: preparing")
            try:
                self._prepare(entry, plan)
            except PointEnded as ended:
                entry.ended = ended
        self._child.close()
        return entries

    def _prepare(self, entry: Entry, plan: CellPlan) -> None:
        contender, path = entry.contender, entry.contender.file
        traced = self._ask(Worker.trace, process.TraceRequest(plan.source, contender.program, plan.batch))
        cost, entry.tokens = traced.cost, traced.cost.tokens
        if contender.export:
            name = next(c.name for c in CONTENDERS if (c.program, c.export) == (contender.program, contender.export))
            path = str(self._folder / f"{name}.onnx")
            request = process.ExportRequest(traced.source, contender.export, path)
            if (Worker.export, request) not in self._replies:
                _refuse_what_cannot_be_validated(cost, plan.batch)
            entry.sha256 = self._ask(Worker.export, request)
        entry.opening = process.OpenRequest(contender, plan.source, path, plan.batch, traced.image)
        if path is None:
            entry.work = cost.work
            self._refuse_what_cannot_fit(entry, cost)
        else:
            file = process.FileRequest(path, str(entry.sha256), plan.batch, plan.height, plan.width)
            counted = self._ask(Worker.count, file)
            self._refuse_what_cannot_fit(entry, cost, counted.need_bytes)
            self._validate(file, cost)
            entry.work = counted.work
            if counted.work and contender.runtime == "openvino" and contender.dtype != "fp32":  # the file is float32
                entry.work = replace(counted.work, flops_by_type={contender.dtype: counted.work.flops})

    def _ask(self, job: Callable[[Worker, Request], Reply], request: Request) -> Reply:
        """The child's reply, or how it ended; of what was asked before, the same without doing it again."""
        key = (job, request)
        if key not in self._replies:
            try:
                self._replies[key] = self._child.ask(job, request)
            except PointEnded as ended:
                self._child.close()
                self._replies[key] = ended
        reply: Reply | PointEnded = self._replies[key]
        if isinstance(reply, PointEnded):
            raise reply
        return reply

    def _validate(self, file: process.FileRequest, cost: TraceCost) -> None:
        """Have `validate` pass the file, unless it has before."""
        known = self._validations.get(file.sha256)
        if known is None:
            _refuse_what_cannot_be_validated(cost, file.batch)
            known = self._validations[file.sha256] = self._ask(Worker.validate, file)
            self._remember(known)
        if not known.passed:
            raise PointEnded(REFUSED, f"validate does not pass it: {known.detail}")

    def _refuse_what_cannot_fit(self, entry: Entry, cost: TraceCost, counted: int | None = None) -> None:
        """Set what a call needs: all of it for eager, what it takes at least for others; a file knows of its tiles."""
        eager, least = entry.contender.runtime == "eager", "at least "
        need = cost.peak_bytes if eager else cost.largest_bytes + cost.work.weights_bytes + cost.work.input_bytes
        if counted is not None and entry.contender.runtime != "openvino":  # which holds whole what others walk in tiles
            need = min(need, counted)
        entry.need_bytes, free = need, usable_bytes()
        if self._settings.device == "cpu" and free is not None and need > free:
            shape, size = "x".join(map(str, cost.largest_shape)), cost.largest_bytes
            whole = f" (its largest tensor, {shape}, takes {format_bytes(size)})" if size <= need else ""
            takes = f"{'' if eager else least}{format_bytes(need)}{whole}"
            raise PointEnded(REFUSED, f"it needs {takes}, and {format_bytes(free)} are free")


def _refuse_what_cannot_be_validated(cost: TraceCost, batch: int) -> None:
    need, free = 3 * cost.peak_bytes // batch, usable_bytes()  # an image in float64, beside the file itself
    if free is not None and need > free:
        numbers = f"that takes {format_bytes(need)}, and {format_bytes(free)} are free"
        raise PointEnded(REFUSED, f"it cannot be validated against the reference in float64 here: {numbers}")
