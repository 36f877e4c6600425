"""What a benchmark writes down: plain records with a JSON round trip. Units are part of the names.

A value that could not be measured is None, and the field beside it says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from infsa_deploy.config import ModelSource

OK = "ok"
REFUSED = "refused"
OUT_OF_MEMORY = "out of memory"
UNSUPPORTED = "unsupported"
TIMEOUT = "timeout"
FAILED = "failed"


@dataclass(frozen=True)
class Machine:
    """What the figures were measured on; packages are versions by name."""

    processor: str
    cores: int
    memory_bytes: int
    platform: str
    gpus: tuple[str, ...]
    packages: Mapping[str, str]

    @property
    def summary(self) -> str:
        """One line."""
        gpus = f", {', '.join(self.gpus)}" if self.gpus else ""
        return f"{self.processor}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB{gpus}, {self.platform}"


@dataclass(frozen=True)
class Settings:
    """How each point is measured.

    Attributes:
        threads: CPU threads of every contender.
        device: `cpu` or `cuda`.
        rounds: turns of each contender, interleaved with the others'; at least.
        most_rounds: turns it may have until its ratio to eager's time is known to within `precision`, a share of it.
        turn_s: seconds of calls a turn; one call at least.
        warm_up_calls: most calls before the first turn; fewer when latency is stable before, or when they have taken
            slow_call_s together.
        slow_call_s: a contender whose call takes longer has no more turns than it must, of one call; four times as
            long: 4, spread over the rounds of the others, of which the first warms up.
        limit_s: a step of a point that takes longer ends as a timeout.
        energy: whether energy is measured where there is a counter.
    """

    threads: int
    device: str = "cpu"
    rounds: int = 12
    most_rounds: int = 18
    precision: float = 0.05
    turn_s: float = 0.8
    warm_up_calls: int = 20
    slow_call_s: float = 4.0
    limit_s: float = 900.0
    energy: bool = True


@dataclass(frozen=True)
class EnergySource:
    """The counter of this machine, looked for once a run before any model is loaded; idle_w is None without one."""

    counter: str | None
    step_s: float | None
    idle_w: float | None
    reason: str | None


@dataclass(frozen=True)
class Run:
    """One invocation: everything that its cells share.

    Attributes:
        started: ISO time, which cells refer to.
        command: what was typed.
        load_average: of the last minute when it began: above `cores`, others were computing too.
    """

    started: str
    command: str
    tool_version: str
    machine: Machine
    settings: Settings
    energy: EnergySource
    load_average: float


@dataclass(frozen=True)
class Ceilings:
    """What the device can do, measured in the run: large matrix products by type, and a large copy.

    Attributes:
        flops_per_s: by type (fp32, bf16, int8); a multiply-add is 2, integer or not.
        bytes_per_s: bytes read plus bytes written.
        method: how each was measured, by the same names and `copy`.
    """

    run: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    method: Mapping[str, str]


@dataclass(frozen=True)
class Validation:
    """What `validate` found of a file with this hash; `detail` says how far out it is when it did not pass."""

    sha256: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Work:
    """What one call computes and must move, counted from the program.

    Attributes:
        flops_by_type: by the type the products are computed in.
        weights_bytes, input_bytes, output_bytes: each is moved at least once.
        activation_bytes: written and read between nodes if nothing is fused; None where only a trace is known.
    """

    flops_by_type: Mapping[str, int]
    weights_bytes: int
    input_bytes: int
    output_bytes: int
    activation_bytes: int | None

    @property
    def flops(self) -> int:
        """Of one call, all types together."""
        return sum(self.flops_by_type.values())

    @property
    def least_bytes(self) -> int:
        """What any implementation moves: weights, inputs and outputs once."""
        return self.weights_bytes + self.input_bytes + self.output_bytes


@dataclass(frozen=True)
class Latency:
    """Wall-clock time of calls, arrays in, arrays out.

    Attributes:
        calls: number of timed calls, over all rounds.
        round_p50_ms: median of each round that it had a turn in.
        turn_every: rounds from one of those to the next.
        core_round_trips_ns: what a cache line took from core to core and back, the longer of before and after each
            turn; None unknown.
        p90_ms, p99_ms: None below 10 and 100 calls, which do not reach that far.
        cv: standard deviation over mean of all calls.
        warm_up_calls: calls before the first timed one.
        stable: whether latency had settled by then.
    """

    calls: int
    round_p50_ms: tuple[float, ...]
    p50_ms: float
    p90_ms: float | None
    p99_ms: float | None
    cv: float
    images_per_s: float
    warm_up_calls: int
    stable: bool
    turn_every: int = 1
    core_round_trips_ns: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Energy:
    """Energy by counter delta over windows of whole calls.

    Attributes:
        gross_j_per_image: everything the counter saw, over the images computed.
        net_j_per_image: the same less idle power.
        cv: standard deviation over mean of the windows.
        images_per_s: throughput within those windows.
    """

    gross_j_per_image: float
    net_j_per_image: float
    idle_w: float
    windows: int
    window_s: float
    cv: float
    images_per_s: float
    sm_clock_mhz: int | None
    power_limit_w: float | None


@dataclass(frozen=True)
class Floor:
    """The least time a call can take at the run's ceilings, and how many times longer it took."""

    floor_ms: float
    bound: str
    achieved_over_floor: float


@dataclass(frozen=True)
class Predicted:
    """The floor on a device that is not here, from its datasheet; never a measurement."""

    device: str
    predicted_floor_ms: float
    bound: str


@dataclass(frozen=True)
class Row:
    """One contender at one point.

    Attributes:
        status: `ok`, or what ended it; `reason` says why, with the numbers.
        speedup_to_eager: median over rounds, or spans of them, of eager's time over this one's in the same; without
            rounds in which cores were apart, where that leaves enough.
        speedup_interval: where that median lies with 95 % confidence; None where the rounds are too few to tell.
        difference_to_eager: largest difference of the logits, over the largest logit; None for another model.
        peak_memory_bytes: of the contender's own process while it ran, its weights included; on a GPU, its tensors
            there, and None for runtimes that do not tell.
    """

    contender: str
    about: str
    runtime: str
    dtype: str
    status: str
    reason: str | None = None
    latency: Latency | None = None
    speedup_to_eager: float | None = None
    speedup_interval: tuple[float, float] | None = None
    difference_to_eager: float | None = None
    peak_memory_bytes: int | None = None
    work: Work | None = None
    floor: Floor | None = None
    predicted: tuple[Predicted, ...] = ()
    energy: Energy | None = None
    energy_reason: str | None = None
    file_sha256: str | None = None


@dataclass(frozen=True)
class Cell:
    """Contenders measured together: one model, size and batch.

    Attributes:
        others_cpu_share: of the machine's CPU time during all turns, what other processes took, 0 to 1; None where it
            cannot be told, with the reason.
    """

    run: str
    model: str
    source: ModelSource
    height: int
    width: int
    batch: int
    tokens: int | None
    rows: tuple[Row, ...]
    others_cpu_share: float | None = None
    others_cpu_reason: str | None = "not recorded"

    @property
    def others(self) -> str:
        """How quiet the machine was, for people."""
        if self.others_cpu_share is None:
            return f"CPU time taken by others meanwhile: {self.others_cpu_reason}"
        return f"others took {self.others_cpu_share:.0%} of the CPU time meanwhile"

    @property
    def core_distance(self) -> str:
        """How far apart the cores were, and whether they stayed there, for people; empty where that is unknown."""
        trips = [ns for row in self.rows if row.latency for ns in row.latency.core_round_trips_ns if ns is not None]
        if not trips:
            return ""
        least, middle, most = min(trips), median(trips), max(trips)
        return f"a cache line took {middle:.0f} ns from core to core and back ({least:.0f} to {most:.0f})"

    @property
    def size(self) -> str:
        """Height x width in pixels, for people."""
        return f"{self.height}x{self.width}"

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What the cell is about, whoever measured it."""
        return (self.model, self.height, self.width, self.batch)


RECORDS: dict[str, type] = {"run": Run, "ceilings": Ceilings, "validation": Validation, "cell": Cell}
