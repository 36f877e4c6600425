"""What a contender needs before it can run: its cost traced, its file exported and validated, and room for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from infsa_deploy.bench.child import Child, PointEnded
from infsa_deploy.bench.contenders import Contender, Program
from infsa_deploy.bench.field import Entry
from infsa_deploy.bench.memory import available_bytes
from infsa_deploy.bench.plan import CellPlan
from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.measurements import REFUSED, Ceilings, EnergySource, Settings, Validation, Work
from infsa_deploy.records import decode
from infsa_deploy.sizes import format_bytes


@dataclass
class Bench:
    """What the cells of a run share; `validations` and what `remember` is told outlive the run.

    `exports` are the path and hash of the files exported so far for the source in hand, by program and ExportConfig.
    """

    run: str
    settings: Settings
    folder: Path
    energy: EnergySource
    ceilings: Ceilings | None
    predict: tuple[str, ...]
    validations: dict[str, Validation]
    remember: Callable[[Validation], None]
    progress: Callable[[str], None]
    exports: dict[tuple[ModelSource, Program, ExportConfig], tuple[str, str]] = field(default_factory=dict)

    def keep_exports_for(self, source: ModelSource) -> None:
        """Remove the files of others, so that the disk holds those of one model and size."""
        for key in [key for key in self.exports if key[0] != source]:
            path = self.exports.pop(key)[0]
            Path(path).unlink()
            Path(f"{path}.data").unlink(missing_ok=True)


class Workshop:
    """A child for what is done before the turns; a new one takes over when one dies."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._child: Child | None = None

    def ask(self, do: str, **arguments: Any) -> Any:
        """As Child.ask."""
        self._child = self._child or Child(self._settings.threads, self._settings.limit_s)
        try:
            return self._child.ask(do, **arguments)
        except PointEnded:
            self.close()
            raise

    def close(self) -> None:
        """End the child."""
        if self._child:
            self._child.close()
            self._child = None


class Preparation:
    """Makes entries: traces each program once, exports and validates each file once."""

    def __init__(self, plan: CellPlan, bench: Bench, workshop: Workshop) -> None:
        self._plan, self._bench, self._workshop = plan, bench, workshop
        self._size = {"height": plan.height, "width": plan.width}
        self._kept: dict[tuple[str, str], Any] = {}
        self.tokens: int | None = None
        bench.keep_exports_for(plan.source)

    def entry(self, contender: Contender) -> Entry:
        """`contender` ready to run, or with how it ended before it began."""
        settings = self._bench.settings
        opening = {
            "source": asdict(self._plan.source),
            "program": contender.program,
            "dtype": contender.dtype,
            "path": contender.file,
            "threads": settings.threads,
            "device": settings.device,
        }
        entry = Entry(contender, opening, self._plan.batch, [], 0, sha256=contender.sha256)
        try:
            self._prepare(entry)
        except PointEnded as ended:
            entry.ended = ended
        return entry

    def _prepare(self, entry: Entry) -> None:
        contender = entry.contender
        self._bench.progress(f"{self._plan.title}: {contender.name}: preparing")
        trace = self._once(("trace", contender.program), partial(self._trace, contender.program))
        entry.image = trace["image"]
        if contender.program == "reference":
            self.tokens = trace["tokens"]
        if contender.export or contender.file:
            key = ("file", contender.file or f"{contender.program} {contender.export}")
            entry.opening["path"], entry.sha256 = self._once(key, partial(self._file, contender, trace))
        else:
            entry.work = decode(Work, trace["work"])
        entry.need_bytes = self._need(entry, trace)
        if self._bench.settings.device == "cpu":
            _refuse_what_cannot_fit(entry.need_bytes, trace, contender)
        if path := entry.opening["path"]:
            self._once(("validation", path), partial(self._validated, entry, trace))
            counted = self._workshop.ask("count", path=path, batch=self._plan.batch, **self._size)
            entry.work = _computed_in(decode(Work, counted), contender) if counted else None

    def _once(self, key: tuple[str, str], step: Callable[[], Any]) -> Any:
        """What `step` gives, or how it ended, kept by `key` for the contenders that share it."""
        if key not in self._kept:
            try:
                self._kept[key] = step()
            except PointEnded as ended:
                self._kept[key] = ended
        if isinstance(self._kept[key], PointEnded):
            raise self._kept[key]
        return self._kept[key]

    def _trace(self, program: str) -> Any:
        return self._workshop.ask("trace", source=asdict(self._plan.source), program=program, batch=self._plan.batch)

    def _file(self, contender: Contender, trace: dict[str, Any]) -> tuple[str, str | None]:
        if contender.file:
            return contender.file, contender.sha256
        return self._exported(contender, trace)

    def _need(self, entry: Entry, trace: dict[str, Any]) -> int:
        """Bytes of a call: of eager what it takes, of others what they take at least; a file knows of its tiles."""
        if entry.contender.runtime == "eager":
            return int(trace["peak_bytes"])
        least = int(trace["largest_bytes"] + trace["work"]["weights_bytes"] + trace["work"]["input_bytes"])
        path = entry.opening["path"]
        if path is None or entry.contender.runtime == "openvino":  # which holds whole what the file walks in tiles
            return least
        return min(least, int(self._workshop.ask("need", path=path, batch=self._plan.batch, **self._size)))

    def _exported(self, contender: Contender, trace: dict[str, Any]) -> tuple[str, str]:
        plan, exports, config = self._plan, self._bench.exports, contender.export
        assert config
        key = (plan.source, contender.program, config)
        if key not in exports:
            _refuse_what_cannot_be_validated(trace, plan.batch)
            path = str(self._bench.folder / f"{plan.model}_{plan.height}x{plan.width}_{contender.name}.onnx")
            exported, _ = exports.get((plan.source, contender.program, replace(config, int8=None)), (None, ""))
            asked = {"source": trace["source"], "config": asdict(config), "path": path, "exported": exported}
            exports[key] = (path, self._workshop.ask("export", **asked))
        return exports[key]

    def _validated(self, entry: Entry, trace: dict[str, Any]) -> None:
        """Have `validate` pass the file, unless it has before; PointEnded when it does not."""
        path, sha256 = entry.opening["path"], entry.sha256
        assert sha256
        known = self._bench.validations.get(sha256)
        if known is None:
            self._bench.progress(f"{self._plan.title}: {entry.contender.name}: validating")
            _refuse_what_cannot_be_validated(trace, self._plan.batch)
            asked = {"path": path, "sha256": sha256, "threads": self._bench.settings.threads, **self._size}
            known = self._bench.validations[sha256] = decode(Validation, self._workshop.ask("validate", **asked))
            self._bench.remember(known)
        if not known.passed:
            raise PointEnded(REFUSED, f"validate does not pass it: {known.detail}")


def _refuse_what_cannot_fit(need: int, trace: dict[str, Any], contender: Contender) -> None:
    free = available_bytes()
    if free is not None and need > free:
        shape, size = "x".join(map(str, trace["largest_shape"])), trace["largest_bytes"]
        whole = f" (its largest tensor, {shape}, takes {format_bytes(size)})" if size <= need else ""
        least = "" if contender.runtime == "eager" else "at least "
        reason = f"it needs {least}{format_bytes(need)}{whole}, and {format_bytes(free)} are free"
        raise PointEnded(REFUSED, reason)


def _refuse_what_cannot_be_validated(trace: dict[str, Any], batch: int) -> None:
    need = 3 * trace["peak_bytes"] // batch  # an image in float64, beside the file itself
    free = available_bytes()
    if free is not None and need > free:
        numbers = f"that takes {format_bytes(need)}, and {format_bytes(free)} are free"
        raise PointEnded(REFUSED, f"it cannot be validated against the reference in float64 here: {numbers}")


def _computed_in(work: Work, contender: Contender) -> Work:
    """`work` of a float32 file in the type that the contender's runtime computes it in."""
    if contender.runtime != "openvino" or contender.dtype == "fp32":
        return work
    return replace(work, flops_by_type={contender.dtype: work.flops})
