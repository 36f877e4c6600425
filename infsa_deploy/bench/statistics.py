"""From the times of calls, round by round, to what the tables show."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import comb, lcm

from infsa_deploy.bench.core_distance import together
from infsa_deploy.measurements import Latency

CONFIDENCE = 0.95


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of `values` do not exceed, interpolated; None when there are too few to tell.

    A 90th percentile needs 10 values: with fewer it is only another name for the largest.
    """
    if len(values) * (1 - share) < 1 - 1e-9:
        return None
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 for a single value."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def summarise(
    turns: Sequence[Sequence[float]],
    batch: int,
    warm_up_calls: int,
    stable: bool,
    turn_every: int = 1,
    core_round_trips_ns: Sequence[float | None] = (),
) -> Latency:
    """Latency over `turns`, each the times in ms of its calls."""
    calls = [time for times in turns for time in times]
    median = statistics.median(calls)
    return Latency(
        calls=len(calls),
        round_p50_ms=tuple(statistics.median(times) for times in turns),
        p50_ms=median,
        p90_ms=percentile(calls, 0.9),
        p99_ms=percentile(calls, 0.99),
        cv=variation(calls),
        images_per_s=1000 * batch / median,
        warm_up_calls=warm_up_calls,
        stable=stable,
        turn_every=turn_every,
        core_round_trips_ns=tuple(core_round_trips_ns),
    )


def ratios(reference: Latency, other: Latency) -> list[float]:
    """The reference's time over the other's, of each span of rounds that has a turn of both.

    What slows the machine for a while slows both in that span, and leaves their ratio alone. Cores that are apart do
    not slow both alike: rounds in which they were do not count, where that leaves enough for an interval.
    """
    every = lcm(reference.turn_every, other.turn_every)
    pairs = zip(_over_spans(reference, every), _over_spans(other, every), strict=False)
    found = [base / time for base, time in pairs]
    counting = [ratio for ratio, near in zip(found, _cores_together(reference, other), strict=False) if near]
    return counting if median_interval(counting) else found


def _over_spans(latency: Latency, every: int) -> list[float]:
    """Median time of each span of `every` rounds, a multiple of those from one turn to the next."""
    medians, turns = latency.round_p50_ms, every // latency.turn_every
    return [statistics.median(medians[at : at + turns]) for at in range(0, len(medians), turns)]


def _cores_together(reference: Latency, other: Latency) -> list[bool]:
    """Of each round whether cores were as near in both turns as they ever were; nothing where turns are spread."""
    if (reference.turn_every, other.turn_every) != (1, 1):
        return []
    rounds = list(zip(reference.core_round_trips_ns, other.core_round_trips_ns, strict=False))
    least = min((trip for trips in rounds for trip in trips if trip is not None), default=0.0)
    return [all(together(trip, least) for trip in trips) for trips in rounds]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Between which of `values` their median lies with 95 % confidence, however they scatter; None below 6 values.

    By the sign test: as many of n values fall below the true median as heads come up in n tosses of a coin.
    """
    ordered, count = sorted(values), len(values)
    beyond, rank = 0, 0  # of 2^n outcomes, those with at most `rank` - 1 values on one side, and on the other
    while 2 * (beyond + comb(count, rank)) <= (1 - CONFIDENCE) * 2**count:
        beyond += comb(count, rank)
        rank += 1
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def median_known(values: Sequence[float], precision: float) -> bool:
    """Whether the interval of the median ends within `precision`, a share of it, on either side."""
    interval, median = median_interval(values), statistics.median(values)
    return interval is not None and max(median - interval[0], interval[1] - median) <= precision * median


def settled(times: Sequence[float], window: int = 3, tolerance: float = 0.05) -> bool:
    """True when the last `window` times lie within `tolerance` of their median."""
    if len(times) < window:
        return False
    last = times[-window:]
    median = statistics.median(last)
    return max(abs(time - median) for time in last) <= tolerance * median
