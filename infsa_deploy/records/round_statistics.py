"""From the times of calls, round by round, to the figures of a table and what makes them doubtful."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infsa_deploy.records.bench import OK, Cell, Row, Run

RESAMPLES, SEED, TAIL = 10_000, 0, 0.025  # of the bootstrap: 95 % lie between its tails
ENOUGH_ROUNDS = 6  # with fewer, an interval says little
MOST_SPREAD, MOST_STEAL = 0.10, 0.02
OWN_LOAD = 0.5  # our threads keep every core busy, and the load average a little more than that


@dataclass(frozen=True)
class Latency:
    """Wall-clock time of the calls of all rounds.

    Attributes:
        round_p50_ms: median of each round that has a call.
        p90_ms, p99_ms: None below 10 and 100 calls, which do not reach that far.
        cv: standard deviation over mean.
        spread: interquartile range over median, which single slow calls do not move.
    """

    calls: int
    round_p50_ms: tuple[float, ...]
    p50_ms: float
    p90_ms: float | None
    p99_ms: float | None
    cv: float
    spread: float
    images_per_s: float


def latency(row: Row, batch: int) -> Latency | None:
    """Summarise the calls of `row`, of `batch` images each; None where it has none."""
    calls = [ms for times in row.rounds_ms for ms in times]
    if not calls:
        return None
    low, middle, high = np.percentile(calls, (25, 50, 75)).tolist()
    return Latency(
        calls=len(calls),
        round_p50_ms=tuple(statistics.median(times) for times in row.rounds_ms if times),
        p50_ms=middle,
        p90_ms=percentile(calls, 0.9),
        p99_ms=percentile(calls, 0.99),
        cv=statistics.stdev(calls) / statistics.fmean(calls) if len(calls) > 1 else 0.0,
        spread=(high - low) / middle,
        images_per_s=1000 * batch / middle,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Find the value that `share` of `values` do not exceed, interpolated; None where they are too few to tell.

    A 90th percentile needs 10 values: with fewer it is only another name for the largest.
    """
    enough = len(values) * (1 - share) >= 1 - 1e-9
    return float(np.percentile(values, 100 * share)) if enough else None


def paired_ratios(reference: Row, other: Row) -> list[float]:
    """Divide the reference's median time by the other's, for each round in which both had a turn.

    What slows the machine for a while slows both turns of that round, and leaves their ratio alone.
    """
    rounds = zip(reference.rounds_ms, other.rounds_ms, strict=False)  # one of them may have ended before the last
    return [statistics.median(base) / statistics.median(times) for base, times in rounds if base and times]


def times_as_fast(reference: Row, other: Row) -> float | None:
    """Find the median of the paired ratios; None without any."""
    ratios = paired_ratios(reference, other)
    return statistics.median(ratios) if ratios else None


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Find where the median of `values` lies with 95 % confidence; None below ENOUGH_ROUNDS values.

    Percentile bootstrap, its seed fixed. Source: B. Efron and R. Tibshirani, An Introduction to the Bootstrap, ch. 13.
    """
    if len(values) < ENOUGH_ROUNDS:
        return None
    drawn = np.random.default_rng(SEED).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (TAIL, 1 - TAIL)).tolist()
    return low, high


def row_warnings(row: Row, cell: Cell) -> tuple[str, ...]:
    """Say what makes the figures of one contender doubtful."""
    times, found = latency(row, cell.batch), []
    if times is None:
        return ()
    taken = len(times.round_p50_ms)
    if row.status != OK:
        found.append(f"it ended early: its figures are of the {taken} rounds before")
    if taken < min(cell.rounds, ENOUGH_ROUNDS):
        found.append(f"{taken} rounds, fewer than {ENOUGH_ROUNDS}: no interval")
    if times.spread > MOST_SPREAD:
        found.append(f"spread {times.spread:.0%}, above {MOST_SPREAD:.0%}")
    return tuple(found)


def cell_warnings(cell: Cell, run: Run) -> tuple[str, ...]:
    """Say what makes all figures of a cell doubtful."""
    found, cores = [], run.machine.cores
    if run.settings.quick:
        found.append("quick run: the numbers are rough")
    if cell.rounds < ENOUGH_ROUNDS:
        found.append(f"{cell.rounds} rounds, fewer than {ENOUGH_ROUNDS}: no intervals")
    if cell.steal_share is not None and cell.steal_share > MOST_STEAL:
        found.append(f"the hypervisor took {cell.steal_share:.1%} of the CPU time, above {MOST_STEAL:.0%}")
    loads = {"before the run": run.load_average, "at the end of the rounds": cell.load_average or 0.0}
    found += [f"load average {load:.1f} on {cores} cores {at}" for at, load in loads.items() if load > cores + OWN_LOAD]
    return tuple(found)
