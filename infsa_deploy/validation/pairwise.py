"""Several artefacts of one model against each other, on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from infsa_deploy.config import Trust
from infsa_deploy.errors import UsageError
from infsa_deploy.records.validation import PairComparison
from infsa_deploy.runtime.sessions.artefact import open_artefact
from infsa_deploy.runtime.sessions.protocol import Arrays
from infsa_deploy.validation.inputs import Plan, call_in_batches, sample_inputs


def compare_pairs(
    paths: Sequence[Path], plan: Plan, threads: int | None = None, trust: Trust | None = None
) -> list[PairComparison]:
    """Compare each two of the artefacts on the images of `plan`; each is loaded once, and alone.

    Raises:
        UsageError: they do not take the same images or give the same outputs.
        As open_artefact.
    """
    outputs: list[tuple[Path, Arrays]] = []
    spec, feeds = None, None
    for path in paths:
        session = open_artefact(path, threads=threads, trust=trust)
        if feeds is None:
            spec = session.metadata.image
            feeds = sample_inputs(plan, spec, session.inputs, session.metadata.dtype)
        if session.metadata.image != spec or {info.name for info in session.inputs} != feeds.keys():
            raise UsageError(f"{path} takes other images than {paths[0]}.", "", "compare artefacts of one export.")
        outputs.append((path, call_in_batches(session, feeds)))
        session.close()
    return [pair for first, second in combinations(outputs, 2) for pair in _compare(*first, *second)]


def _compare(first: Path, ours: Arrays, second: Path, theirs: Arrays) -> list[PairComparison]:
    if ours.keys() != theirs.keys():
        raise UsageError(f"{second} has other outputs than {first}.", "", "compare artefacts of one export.")
    pairs = []
    for name in ours:
        a, b = ours[name].astype(np.float64), theirs[name].astype(np.float64)
        flat, other = a.reshape(len(a), -1), b.reshape(len(b), -1)
        agreement = float((flat.argmax(axis=1) == other.argmax(axis=1)).mean())
        pairs.append(PairComparison(str(first), str(second), name, len(a), float(np.abs(a - b).max()), agreement))
    return pairs
