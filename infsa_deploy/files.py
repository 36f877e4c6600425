"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infsa_deploy.errors import DeployError, HostError, ModelError, UsageError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to; everything written beside it moves next to `path` when the block ends well.

    The yielded path has the final name, in a scratch folder on the same file system, so that a file may refer to a
    companion by name. The companions move first, `path` last. On any failure, Ctrl-C included, nothing is left.

    Raises:
        UsageError: the folder of `path` does not exist, or `path` is a folder.
        HostError: the folder is read-only, or the disk is full.
    """
    check_target(path)
    folder = path.parent
    scratch = folder / f".{path.name}.{secrets.token_hex(4)}"  # named before it is made: Ctrl-C may come in between
    try:
        os.mkdir(scratch, 0o700)
        yield scratch / path.name
        for item in sorted(scratch.iterdir(), key=lambda item: item.name == path.name):
            os.replace(item, folder / item.name)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def artefact_sha256(path: Path) -> str:
    """Hash an ONNX file or an engine together with the weights that it keeps beside it in `NAME.data`.

    Without such a file it is the SHA-256 of the artefact itself; with one, that of the two hashes one after the other.
    """
    alone, weights = sha256(path), path.with_name(f"{path.name}.data")
    return hashlib.sha256((alone + sha256(weights)).encode()).hexdigest() if weights.is_file() else alone


def check_target(
    path: Path, inputs: Iterable[Path | None] = (), *, beside: Iterable[str] = (), suffix: str = ""
) -> None:
    """Raise UsageError if `path` cannot become a file; worth asking before the work whose result goes there.

    Args:
        path: the file to write.
        inputs: files that the same command reads, see check_apart.
        beside: endings of further files that are written, under the name of `path` and the ending.
        suffix: what the name has to end in.
    """
    if not path.name.endswith(suffix):
        fix = f"write -o {path}{suffix}"
        raise UsageError(f"cannot write {path}.", f"its name has to end in {suffix}.", fix)
    if not path.parent.is_dir():
        folder = path.parent
        raise UsageError(f"cannot write {path}.", f"the folder {folder} does not exist.", f"mkdir -p {folder}")
    if path.is_dir():
        raise UsageError(f"cannot write {path}.", "it is a folder.", "give a file name with -o.")
    check_apart([path, *(path.with_name(f"{path.name}{ending}") for ending in beside)], inputs)


def check_apart(targets: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Raise UsageError if a file to be written is one of the files to be read; hard and symbolic links count as it."""
    written = {_identity(target): target for target in targets}
    for read in inputs:
        target = written.get(_identity(read)) if read else None
        if target:
            raise UsageError(
                f"{target} would be replaced.", f"it is the file {read}, which is read.", "choose another -o."
            )


def _identity(path: Path) -> tuple[int, int] | Path:
    """Equal for all names of one file."""
    try:
        found = path.stat()
    except OSError:
        return path.resolve()
    return found.st_dev, found.st_ino


def check_model_file(path: Path) -> None:
    """Raise ModelError unless `path` is a file with something in it; whether that is a model, its reader tells."""
    if path.is_dir():
        raise ModelError(
            f"{path} is a folder.", "a model is a file.", "give the path that infsa-deploy export printed."
        )
    if not path.is_file():
        raise ModelError(f"{path} does not exist.", "", "give the path that infsa-deploy export printed.")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty.", "it was cut off before anything was written.", "export it again.")


def unwritable(path: Path, error: OSError) -> DeployError:
    """The error for a path that the system refused to write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostError(f"cannot write {path}.", "the disk is full; nothing was left behind.", "free some space.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HostError(f"cannot write {path}.", f"{path.parent} is not writable.", "choose another folder with -o.")
    return HostError(f"cannot write {path}.", str(error), "choose another path with -o.")


UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(count: float) -> str:
    """A size with three digits: `7.26 MB`, `1.24 GB`."""
    unit, name = next(((u, n) for u, n in UNITS if count >= u), (1.0, "B"))
    return f"{count / unit:.3g} {name}" if count < 999.5 * unit else f"{count / unit:,.0f} {name}"
