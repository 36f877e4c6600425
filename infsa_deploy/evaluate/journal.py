"""What is known of each image so far, on disk, so that an evaluation that was interrupted goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infsa_deploy.errors import HostError, UsageError
from infsa_deploy.files import written_whole
from infsa_deploy.records.codec import parse_json

Entry = dict[str, Any]


class Journal:
    """Entries by image name; with a path, appended to a file of one JSON object a line, the first naming the task.

    A line that an interruption cut short is dropped.

    Args:
        path: the file, made if it is not there; None keeps everything in memory.
        task: what the entries depend on (model, data, plan); a file of another task is refused.

    Raises:
        UsageError: the file belongs to another task, or is damaged.
        HostError: it cannot be written.
    """

    def __init__(self, path: Path | None, task: Mapping[str, Any]) -> None:
        self.entries: dict[str, Entry] = {}
        self._path = path
        if path is None:
            return
        header = json.dumps(task, sort_keys=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        *lines, torn = text.split("\n")
        if lines and lines[0] != header:
            raise UsageError(
                f"{path} belongs to another evaluation.",
                "its model, images or options are not these.",
                "choose another folder with -o, or remove the file.",
            )
        self._read(lines[1:], path)
        if torn or not lines:
            with written_whole(path) as scratch:
                scratch.write_text("".join(f"{line}\n" for line in lines or [header]), encoding="utf-8")

    def _read(self, lines: Iterable[str], path: Path) -> None:
        try:
            for line in lines:
                entry = parse_json(line)
                self.entries[entry["image"]] = entry
        except (ValueError, KeyError, TypeError) as error:
            why = f"a line in it is no entry: {error}"
            raise UsageError(f"{path} is damaged.", why, "remove the file to start again.") from error

    def add(self, entries: Iterable[Entry]) -> None:
        """Keep entries, each with the name of its image under `image`."""
        entries = list(entries)
        self.entries.update({entry["image"]: entry for entry in entries})
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(entry)}\n" for entry in entries)
        except OSError as error:
            raise HostError(f"cannot write {self._path}.", str(error), "choose another folder with -o.") from error
