"""What is costly to make is made once a run, whichever worker asks first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Make = Callable[[Path], None]


SHARED = "INFSA_TEST_SHARED"  # folder of a run, which its workers and their children know from the environment


def pytest_configure(config: pytest.Config) -> None:
    if SHARED not in os.environ:
        folder = os.environ[SHARED] = tempfile.mkdtemp(prefix="infsa-shared-")
        config.add_cleanup(lambda: shutil.rmtree(folder))


@pytest.fixture(scope="session")
def shared() -> Path:
    """A folder that all processes of the run share."""
    return Path(os.environ[SHARED])


@pytest.fixture(scope="session", autouse=True)
def traces(shared) -> Iterator[None]:
    """One memory of traces for the whole run."""
    import torch

    from tests.session.traces import remembered

    (shared / "traces").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", remembered(torch.onnx.export, shared / "traces"))
        yield


@pytest.fixture(scope="session")
def once(shared) -> Callable[[str, Make], Path]:
    """Give the folder that `make` has filled: once("digits", make). The others that ask wait for the first."""

    def folder(key: str, make: Make) -> Path:
        place = shared / hashlib.sha256(key.encode()).hexdigest()[:16]
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                draft = Path(tempfile.mkdtemp(dir=shared))
                make(draft)
                draft.rename(place)
        return place

    return folder
