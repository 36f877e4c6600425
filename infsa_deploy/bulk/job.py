"""A bulk job: images cut into parts, and a folder of results that says which job it belongs to.

The cut depends on the images alone, and part K becomes `part-K.parquet`, so that a part done twice is one file.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infsa_deploy.errors import HostError, UsageError
from infsa_deploy.files import artefact_sha256, check_apart, check_model_file, written_whole
from infsa_deploy.records.codec import from_json, to_json
from infsa_deploy.runtime.pictures.folder import SUFFIXES
from infsa_deploy.version import __version__

JOB, LISTING = "_job.json", "_images.parquet"  # readers of a folder of Parquet files pass over names with _ and .
PARTS = "part-*.parquet"
FOOTER_TAIL = 8  # bytes: the footer's length and PAR1


@dataclass(frozen=True)
class Job:
    """What is asked. A folder of results is continued by the same job only.

    Attributes:
        model: path of an ONNX file or an engine.
        model_sha256: hash of its bytes, weights in a companion included.
        images: a folder of images, a Parquet file or a folder of Parquet files.
        images_sha256: hash of the names of the images, or of the footers of the Parquet files.
        path_column: Parquet column that names each image; a relative path starts where the Parquet file lies.
        bytes_column: Parquet column of encoded images, or None to open the paths. `a.b` is field b of struct a.
        provider: `cpu` or `cuda`, for an ONNX file.
        part_images: the most images a part has.
        version: of infsa-deploy.
    """

    model: str
    model_sha256: str
    images: str
    images_sha256: str
    path_column: str
    bytes_column: str | None
    provider: str
    part_images: int
    version: str = __version__

    @property
    def identity(self) -> str:
        """A hash of all that the results depend on; the model may have moved."""
        return hashlib.sha256(to_json(dataclasses.replace(self, model="")).encode()).hexdigest()


@dataclass(frozen=True)
class Part:
    """Rows `start` to `stop` of a row group in a Parquet file, whose relative paths start at `root`.

    `row` is the number of the first of them within the file.
    """

    index: int
    file: str
    root: str
    row_group: int
    start: int
    stop: int
    row: int

    @property
    def name(self) -> str:
        """The file of results."""
        return PARTS.replace("*", f"{self.index:06d}")


def open_job(
    folder: Path,
    model: Path,
    images: Path,
    *,
    path_column: str = "path",
    bytes_column: str | None = None,
    provider: str = "cpu",
    part_images: int = 256,
) -> tuple[Job, list[Part]]:
    """Begin a job whose results go to `folder`, or continue it; the parts are all of the job's, done or not.

    Raises:
        UsageError: there are no images, a column is missing, or `folder` holds the results of another job.
        ModelError: the model is not there.
    """
    check_model_file(model)
    paths = _pictures(images)
    sources = [] if paths else _parquet_files(images, folder, path_column, bytes_column)
    written = [folder / LISTING, folder / JOB, *folder.glob(PARTS)]
    check_apart(written, [model, model.with_name(f"{model.name}.data"), *sources, *(images / name for name in paths)])
    job = Job(
        model=str(model.resolve()),
        model_sha256=artefact_sha256(model),
        images=str(images.resolve()),
        images_sha256=_names_sha256(paths) if paths else _footers_sha256(sources),
        path_column="path" if paths else path_column,
        bytes_column=None if paths else bytes_column,
        provider=provider,
        part_images=part_images,
    )
    _claim(folder, job, paths)
    rooted = {folder / LISTING: images} if paths else {file: file.parent for file in sources}
    return job, list(_cut(rooted, part_images))


def read_job(folder: Path) -> Job:
    """The job whose results are in `folder`; UsageError when its description is damaged."""
    path = folder / JOB
    try:
        return from_json(Job, path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged.", str(error), "choose another folder with -o.") from error


def _pictures(images: Path) -> list[str]:
    """Image files below a folder, relative to it, in an order that every file system gives."""
    found = (path for path in images.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    paths = sorted(path.relative_to(images).as_posix() for path in found)
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{path!r} in {images} cannot be listed.", "it is no UTF-8 text.", "rename it.") from error
    return paths


def _parquet_files(images: Path, results: Path, path_column: str, bytes_column: str | None) -> list[Path]:
    """The Parquet file, or those below a folder but for the results, which may lie in it."""
    below = (path for path in images.rglob("*.parquet") if results.resolve() not in path.resolve().parents)
    files = [images] if images.is_file() else sorted(below)
    if not files:
        why = "there is no such file or folder."
        if images.is_dir():
            why = f"the folder holds no file ending in {', '.join((*SUFFIXES, '.parquet'))}."
        raise UsageError(f"no images in {images}.", why, "give a folder of images or a Parquet file.")
    for file in files:
        try:
            columns = set(pq.ParquetFile(file).schema_arrow.empty_table().flatten().column_names)
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"{file} is no Parquet file.", str(error), "write it again.") from error
        missing = {path_column, bytes_column} - {None} - columns
        if missing:
            raise UsageError(
                f"{file} has no column {', '.join(sorted(map(str, missing)))}.",
                f"it has {', '.join(sorted(columns))}.",
                "name the columns with --path-column and --bytes-column.",
            )
    return files


def _claim(folder: Path, job: Job, paths: Sequence[str]) -> None:
    """Write the description and the listing, or find there those of this very job."""
    if (folder / JOB).exists():
        _check_same(folder, read_job(folder), job)
        return
    if any(folder.glob(PARTS)):
        raise UsageError(f"{folder} holds parts of an unknown job.", f"there is no {JOB}.", "choose another with -o.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the folder {folder}.", str(error), "choose another with -o.") from error
    if paths:
        with written_whole(folder / LISTING) as scratch:
            pq.write_table(pa.table({"path": pa.array(paths, pa.string())}), scratch, row_group_size=job.part_images)
    with written_whole(folder / JOB) as scratch:
        scratch.write_text(to_json(job) + "\n", encoding="utf-8")


def _check_same(folder: Path, begun: Job, wanted: Job) -> None:
    if begun.identity == wanted.identity:
        return
    old, new = (dataclasses.asdict(job) for job in (begun, wanted))
    changes = [f"{name} was {old[name]}, now {new[name]}" for name in old if name != "model" and old[name] != new[name]]
    raise UsageError(
        f"{folder} holds the results of another job.",
        f"{'; '.join(changes)}.",
        "repeat that job as it was to finish it, or choose another folder with -o.",
    )


def _cut(rooted: Mapping[Path, Path], part_images: int) -> Iterator[Part]:
    index = 0
    for file, root in rooted.items():
        places = str(file.resolve()), str(root.resolve())
        footer, row = pq.read_metadata(file), 0
        for row_group in range(footer.num_row_groups):
            rows = footer.row_group(row_group).num_rows
            for start in range(0, rows, part_images):
                yield Part(index, *places, row_group, start, min(start + part_images, rows), row + start)
                index += 1
            row += rows


def _names_sha256(paths: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(paths).encode()).hexdigest()


def _footers_sha256(files: Sequence[Path]) -> str:
    """Of all footers, which hold the place, size and bounds of every column's pages: the images may be terabytes."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            file.seek(-FOOTER_TAIL, 2)
            length = int.from_bytes(file.read(4), "little")
            file.seek(-FOOTER_TAIL - length, 2)
            digest.update(file.read())
    return digest.hexdigest()
