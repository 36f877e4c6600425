"""The file that a benchmark appends to: JSON Lines, one record a line, readable after any interruption.

A line is `{"kind": KIND, "record": {...}}` with a KIND of `measurements.RECORDS`. Each line is written by one call and
forced to disk. A process killed between the two leaves at most one line without its end, which readers leave out
and the next append removes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.records.bench import RECORDS, Ceilings, Cell, Machine, Run, Settings, Validation
from infsa_deploy.records.codec import decode, parse_json


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

    def has(self, key: tuple[str, int, int, int], hashes: Mapping[str, str | None]) -> bool:
        """Tell whether the cell of `key` was measured with all contenders that `hashes` names.

        Those that have a hash there must have run that file.
        """
        for cell in self.cells:
            known = {row.contender: row.file_sha256 for row in cell.rows}
            same = (name in known and sha256 in (None, known[name]) for name, sha256 in hashes.items())
            if cell.key == key and all(same):
                return True
        return False

    def run_of(self, cell: Cell) -> Run:
        """The run that measured `cell`."""
        return next(run for run in self.runs if run.started == cell.run)

    def ceilings_of(self, cell: Cell) -> Ceilings | None:
        """The ceilings measured in the same run as `cell`."""
        return next((ceilings for ceilings in self.ceilings if ceilings.run == cell.run), None)


@contextmanager
def claimed(path: Path) -> Iterator[Path]:
    """Be the only process that extends the file at `path`; yield a folder beside it for work, removed at the end.

    A folder that a killed process left is taken over.

    Raises:
        UsageError: another process extends the file.
    """
    folder = path.with_name(f".{path.name}.work")
    folder.mkdir(exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        why = "two at once would measure the same cells, each slowed by the other."
        raise UsageError(f"another benchmark is writing {path}.", why, "wait until it is done.") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def read_to_continue(path: Path, machine: Machine, settings: Settings) -> Results:
    """Read the file at `path`, if there is one, with the runs that measured a cell.

    Raises:
        UsageError: they were of another machine or had other settings.
    """
    if not path.exists():
        return Results((), (), (), ())
    found = read([path])
    found = replace(found, runs=found.measuring_runs)
    for run in found.runs:
        if run.machine.summary != machine.summary:
            what = f"{path} holds results of another machine."
            raise UsageError(what, run.machine.summary, "give another file with -o.")
        if run.settings != settings:
            why = f"it has {run.settings}; this run has {settings}."
            fix = "give the same options to continue, or another file with -o."
            raise UsageError(f"{path} holds results of other settings.", why, fix)
    return found


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
