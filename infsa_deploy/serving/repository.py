"""Writing into a model repository that a server may be reading: whole folders, renamed into place."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from infsa_deploy.errors import HostError, UsageError
from infsa_deploy.files import unwritable


def next_version(folder: Path) -> int:
    """One more than the highest version of the model in `folder`, 1 for a new one."""
    present = [int(item.name) for item in folder.iterdir() if item.name.isdigit()] if folder.is_dir() else []
    return max(present, default=0) + 1


class Repository:
    """Collects files; on leaving the with block they appear, on an error nothing does.

    A new model's folder is renamed whole. Of a model that is there, single files are replaced and version folders
    renamed, versions last. A server that polls the repository may log that the scratch folder is no model.

    Raises:
        UsageError: the parent of `root` does not exist, or `root` is a file.
        HostError: it cannot be written, or another process added the same version meanwhile.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if root.exists() and not root.is_dir():
            raise UsageError(f"{root} is no folder.", "a model repository is one.", "give another -o REPO.")
        if not root.parent.is_dir():
            why = f"the folder {root.parent} does not exist."
            raise UsageError(f"cannot make {root}.", why, f"mkdir -p {root.parent}")
        self._made = not root.exists()
        self._models: list[str] = []

    def write(self, model: str, name: str, text: str) -> None:
        """A text file of a model; `name` may begin with a version's folder."""
        self._place(model, name).write_text(text, encoding="utf-8")

    def copy(self, model: str, name: str, source: Path) -> None:
        """A copy of a file."""
        shutil.copyfile(source, self._place(model, name))

    def __enter__(self) -> Repository:
        try:
            self.root.mkdir(exist_ok=True)
            self._scratch = Path(tempfile.mkdtemp(prefix=".package.", dir=self.root))
        except OSError as error:
            raise unwritable(self.root, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self._publish()
        except OSError as failure:
            raise unwritable(self.root, failure) from failure
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            if self._made and error is not None:
                self.root.rmdir()
        if isinstance(error, OSError):
            raise unwritable(self.root, error) from error

    def _place(self, model: str, name: str) -> Path:
        if model not in self._models:
            self._models.append(model)
        path = self._scratch / model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _publish(self) -> None:
        for name in self._models:  # in the order written: an ensemble comes after its parts
            model, target = self._scratch / name, self.root / name
            if not target.exists():
                os.rename(model, target)
                continue
            for item in sorted(model.iterdir(), key=lambda item: item.is_dir()):
                if item.is_dir() and (target / item.name).exists():
                    why = "another process packaged the model meanwhile."
                    raise HostError(f"{target / item.name} is there already.", why, "package it again.")
                os.replace(item, target / item.name)
