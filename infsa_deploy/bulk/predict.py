"""One part of a bulk job: read its images, run the model, write the predictions whole."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infsa_deploy.bulk.job import PARTS, Part, read_job
from infsa_deploy.config import Trust
from infsa_deploy.errors import DeployError, HostError, ModelError
from infsa_deploy.files import artefact_sha256, written_whole
from infsa_deploy.runtime.classify import BATCH_PIXELS, name_classes
from infsa_deploy.runtime.cores import thread_count
from infsa_deploy.runtime.memory import check_fits
from infsa_deploy.runtime.outputs import check_classifies
from infsa_deploy.runtime.pictures.preprocess import Pixels, at_own_size, preprocess, read_image
from infsa_deploy.runtime.sessions.artefact import open_artefact
from infsa_deploy.runtime.sessions.protocol import call_padded
from infsa_deploy.version import __version__

SCHEMA = pa.schema(
    {"path": pa.string(), "class": pa.string(), "score": pa.float64(), "error": pa.string(), "model": pa.string()}
)
IDENTITY, UNREADABLE = b"infsa.job", b"infsa.unreadable"  # keys in a part's footer
MOST_ATTEMPTS = 5

Row = dict[str, Any]
Named = tuple[str, Path | bytes | None]


@dataclass(frozen=True)
class PartResult:
    """A part whose predictions are on disk; `worker` is HOST:PID, None where it lay there already."""

    part: int
    images: int
    unreadable: int
    worker: str | None


class PartWorker:
    """Predicts parts of the job in `folder`, on as many CPU threads as given.

    Raises:
        UsageError: the job's description is damaged, or its model does not classify pictures.
        ModelError: the model on this machine is not the job's.
        HostError: the model cannot be run here, or this infsa-deploy is another version.
    """

    def __init__(self, folder: Path, threads: int | None = None, trust: Trust | None = None) -> None:
        self.folder, self.job = folder, read_job(folder)
        if self.job.version != __version__:
            why = f"the job began with {self.job.version}, {socket.gethostname()} has {__version__}."
            raise HostError("this machine has another infsa-deploy than the job.", why, "install the same on all.")
        model = Path(self.job.model)
        if not model.is_file() or artefact_sha256(model) != self.job.model_sha256:
            raise ModelError(
                f"{model} on {socket.gethostname()} is not the model of {folder}.",
                "every worker reads the same paths: the file is missing here, or another version.",
                "put model, images and output on storage that all machines share.",
            )
        self.session = open_artefact(model, self.job.provider, threads, trust=trust)
        check_classifies(str(model), self.session)
        self._pool = ThreadPoolExecutor(thread_count(threads))

    def __call__(self, part: Part) -> PartResult:
        """Predict one part, unless its results are there; an image that cannot be used is a row with its error.

        Raises:
            HostError: MOST_ATTEMPTS workers died at the part, or it cannot be written.
        """
        known = finished(self.folder, self.job.identity, part)
        if known is not None:
            return known
        pictures = _pictures(part, self.job.path_column, self.job.bytes_column)
        self._check_attempts(part, [name for name, _ in pictures])
        with written_whole(self.folder / part.name) as scratch:
            rows = list(self._rows(pictures))
            unreadable = sum(row["error"] is not None for row in rows)
            footer = {IDENTITY: self.job.identity, UNREADABLE: str(unreadable)}
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA.with_metadata(footer)), scratch)
        return PartResult(part.index, len(rows), unreadable, f"{socket.gethostname()}:{os.getpid()}")

    def _check_attempts(self, part: Part, names: Sequence[str]) -> None:
        """A worker that dies leaves the scratch folder of the part it was at."""
        attempts = sum(1 for _ in self.folder.glob(f".{part.name}.*"))
        if attempts >= MOST_ATTEMPTS:
            raise HostError(
                f"part {part.index} has ended {attempts} workers.",
                f"one of its images, {names[0]} to {names[-1]}, may need too much memory or crash a decoder.",
                "the cluster's logs tell why they died; fewer workers a machine leave each more memory.",
            )

    def _rows(self, pictures: Sequence[Named]) -> Iterator[Row]:
        """A row a picture, in order; the next call's pictures are prepared while the model runs."""
        size = self._images_a_call()
        calls = [pictures[start : start + size] for start in range(0, len(pictures), size)]
        ahead: list[Future[Pixels | DeployError]] = []
        for call, following in zip(calls, [*calls[1:], []], strict=True):
            current = ahead or [self._pool.submit(self._prepared, *named) for named in call]
            ahead = [self._pool.submit(self._prepared, *named) for named in following]
            yield from self._answered([name for name, _ in call], [future.result() for future in current])

    def _images_a_call(self) -> int:
        """The same on every machine, whatever memory it has: int8 scores depend on which images share a call."""
        spec, fixed = self.session.metadata.image, self.session.inputs[0].shape[0]
        if isinstance(fixed, int):
            return fixed
        together = 1 if spec.multiple_of else max(1, BATCH_PIXELS // (spec.height * spec.width))
        return min(together, self.session.max_batch or together)

    def _prepared(self, name: str, picture: Path | bytes | None) -> Pixels | DeployError:
        """[1, C, H, W], or why not."""
        if picture is None:
            return ModelError(f"{name} has no bytes.", f"the column {self.job.bytes_column} is null.")
        metadata = self.session.metadata
        try:
            pixels = read_image(picture, name)
            if self.session.on_host:
                check_fits(metadata, at_own_size(pixels.shape, metadata.image))
            return preprocess(pixels, metadata.image)
        except DeployError as error:
            return error
        except Exception as error:  # a decoder may raise anything on a damaged image
            return ModelError(f"{name} cannot be used.", f"{type(error).__name__}: {error}")

    def _answered(self, names: Sequence[str], prepared: Sequence[Pixels | DeployError]) -> Iterator[Row]:
        """Run the model on the images that there are; a row for each of `names`."""
        arrays = [array for array in prepared if not isinstance(array, DeployError)]
        logits = iter(call_padded(self.session, np.concatenate(arrays))["logits"] if arrays else ())
        for name, array in zip(names, prepared, strict=True):
            row: Row = {"path": name, "class": None, "score": None, "error": None, "model": self.job.model_sha256}
            if isinstance(array, DeployError):
                row["error"] = " ".join(filter(None, (array.what, array.why)))
            else:
                best = name_classes(name, next(logits), self.session.metadata.classes, top=1)
                row |= {"class": best.classes[0], "score": best.scores[0]}
            yield row


def finished(folder: Path, identity: str, part: Part) -> PartResult | None:
    """The part's result where the file on disk is whole, of this job and of the right length."""
    try:
        footer = pq.read_metadata(folder / part.name)
    except (OSError, pa.ArrowInvalid):
        return None
    notes = footer.metadata or {}
    if notes.get(IDENTITY) != identity.encode() or footer.num_rows != part.stop - part.start:
        return None
    return PartResult(part.index, footer.num_rows, int(notes[UNREADABLE]), None)


def remove_scratch(folder: Path) -> None:
    """Remove what killed workers had begun to write; for when none is at work."""
    for scratch in folder.glob(f".{PARTS}.*"):
        shutil.rmtree(scratch, ignore_errors=True)


def _pictures(part: Part, path_column: str, bytes_column: str | None) -> list[Named]:
    columns = list(filter(None, (path_column, bytes_column)))
    group = pq.ParquetFile(part.file).read_row_group(part.row_group, columns=columns)
    table = group.slice(part.start, part.stop - part.start).flatten()
    named = table[path_column].to_pylist()
    names = [name or f"{Path(part.file).name}:{part.row + index}" for index, name in enumerate(named)]
    if bytes_column:
        return list(zip(names, table[bytes_column].to_pylist(), strict=True))
    return [(name, Path(part.root, name)) for name in names]
