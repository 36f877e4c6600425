"""How many threads may work at once on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(asked: int | None, note: Callable[[str], None] | None = None) -> int:
    """How many threads to start: as many as asked for, at most one a usable core, which is also the default.

    Args:
        asked: the wish; None for the default.
        note: told when the wish is cut down; default: a Python warning.
    """
    cores = usable_cores()
    if asked is None or asked <= cores:
        return asked or cores
    text = f"{asked} threads are more than the {cores} cores that may be used: taking {cores}."
    if note:
        note(text)
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return cores
