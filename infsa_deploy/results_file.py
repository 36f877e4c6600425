"""The file a benchmark appends to: JSON Lines, one record a line, readable after any interruption.

A line is `{"kind": KIND, "record": {...}}` with a KIND of `measurements.RECORDS`. Each line is written by one call and
forced to disk. A process killed between the two leaves at most one line without its end, which readers leave out
and the next append removes.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.measurements import RECORDS, Ceilings, Cell, Run, Validation
from infsa_deploy.records import decode, parse_json


@dataclass(frozen=True)
class Results:
    """What results files hold, in the order it was written; of cells measured again alike, the last."""

    runs: tuple[Run, ...]
    ceilings: tuple[Ceilings, ...]
    validations: tuple[Validation, ...]
    cells: tuple[Cell, ...]

    @property
    def measuring_runs(self) -> tuple[Run, ...]:
        """The runs that measured a cell which is still the last of its kind."""
        starts = {cell.run for cell in self.cells}
        return tuple(run for run in self.runs if run.started in starts)

    def run_of(self, cell: Cell) -> Run:
        """The run that measured `cell`."""
        return next(run for run in self.runs if run.started == cell.run)

    def ceilings_of(self, cell: Cell) -> Ceilings | None:
        """The ceilings measured in the same run as `cell`."""
        return next((ceilings for ceilings in self.ceilings if ceilings.run == cell.run), None)


def append(path: Path, record: Run | Ceilings | Validation | Cell) -> None:
    """Add one record to the file at `path`, which is made when it is not there.

    Raises:
        UsageError: the folder does not exist.
        HostError: the file cannot be written.
    """
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}.", "its folder does not exist.", f"mkdir -p {path.parent}")
    kind = next(name for name, known in RECORDS.items() if isinstance(record, known))
    line = json.dumps({"kind": kind, "record": asdict(record)}).encode() + b"\n"
    try:
        with path.open("ab+", buffering=0) as file:
            _cut_torn_line(file)
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "there is room for a part of the line only")
            os.fsync(file.fileno())
    except OSError as error:
        raise HostError(f"cannot write {path}.", str(error), "choose another file with -o.") from error


def read(paths: Sequence[Path]) -> Results:
    """Everything whole in the files at `paths`.

    Raises:
        ModelError: a file is missing, or holds lines that are no results of ours.
    """
    found: dict[type, list[Any]] = {kind: [] for kind in RECORDS.values()}
    for path in paths:
        for record in _records(path):
            found[type(record)].append(record)
    runs = {run.started: run for run in found[Run]}
    cells = [cell for cell in found[Cell] if cell.run in runs]
    latest = {(cell.key, runs[cell.run].settings, runs[cell.run].machine.summary): cell for cell in cells}
    return Results(tuple(found[Run]), tuple(found[Ceilings]), tuple(found[Validation]), tuple(latest.values()))


def _records(path: Path) -> list[Any]:
    try:
        *lines, _torn = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ModelError(f"cannot read {path}.", str(error), "give a file that infsa-deploy bench wrote.") from error
    try:
        values = [parse_json(line) for line in lines]
        return [decode(RECORDS[value["kind"]], value["record"]) for value in values]
    except (ValueError, KeyError, TypeError) as error:
        fix = "give a file that this version's infsa-deploy bench wrote."
        raise ModelError(f"{path} holds no benchmark results.", f"{type(error).__name__}: {error}", fix) from error


def _cut_torn_line(file: Any) -> None:
    """Drop what follows the last line end."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.ftruncate(file.fileno(), whole)
