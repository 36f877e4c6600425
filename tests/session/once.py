"""What is costly to make is made once a run, whichever worker asks first."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

Make = Callable[[Path], None]


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Callable[[str, Make], Path]:
    """Give the folder that `make` has filled: once("digits", make). The others that ask wait for the first."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if base.name.startswith("popen-") else base) / "once"  # a worker's folder lies in the run's
    shared.mkdir(exist_ok=True)

    def folder(key: str, make: Make) -> Path:
        place = shared / hashlib.sha256(key.encode()).hexdigest()[:16]
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                draft = Path(tmp_path_factory.mktemp("draft"))
                make(draft)
                draft.rename(place)
        return place

    return folder
