"""What is known of each image so far, on disk, so that an evaluation that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infsa_deploy.errors import HostError, UsageError

Entry = dict[str, Any]


class Journal:
    """Entries by image name; with a path, appended to a file of one JSON object a line, the first naming the task.

    A line that an interruption cut short is dropped.

    Args:
        path: the file, made if it is not there; None keeps everything in memory.
        task: what the entries depend on (model, data, plan); a file of another task is refused.

    Raises:
        UsageError: the file belongs to another task, or is no journal.
        HostError: it cannot be written.
    """

    def __init__(self, path: Path | None, task: Mapping[str, Any]) -> None:
        self.entries: dict[str, Entry] = {}
        self._path = path
        header = json.dumps(task, sort_keys=True)
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        if lines and lines[0] != header:
            raise UsageError(
                f"{path} belongs to another evaluation.",
                "its model, images or options are not these.",
                "choose another folder with -o, or remove the file.",
            )
        for line in lines[1:]:
            entry = json.loads(line)
            self.entries[entry["image"]] = entry
        self._append([header] if not lines else [], truncate_to=lines)

    def add(self, entries: Iterable[Entry]) -> None:
        """Keep entries, each with the name of its image under `image`."""
        entries = list(entries)
        self.entries.update({entry["image"]: entry for entry in entries})
        if self._path is not None:
            self._append([json.dumps(entry) for entry in entries])

    def _append(self, lines: list[str], truncate_to: list[str] | None = None) -> None:
        assert self._path is not None
        try:
            if truncate_to is not None:
                self._path.write_text("".join(f"{line}\n" for line in truncate_to), encoding="utf-8")
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            raise HostError(f"cannot write {self._path}.", str(error), "choose another folder with -o.") from error
