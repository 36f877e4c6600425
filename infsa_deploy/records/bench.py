"""What a benchmark writes down: plain records with a JSON round trip. Units are part of the names.

A value that could not be measured is None, and the field beside it says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infsa_deploy.config import ModelSource

OK = "ok"
REFUSED = "refused"
OUT_OF_MEMORY = "out of memory"
UNSUPPORTED = "unsupported"
NOT_INSTALLED = "not installed"
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
    """How each cell is measured.

    Attributes:
        threads: CPU threads of every contender.
        device: `cpu` or `cuda`.
        budget_s: seconds that the rounds of a cell should take together.
        fewest_rounds, most_rounds: rounds of a cell, whatever the budget; every contender has a turn in each.
        turn_s: seconds of calls in a turn; one call at least.
        warm_up_calls: most calls before the first turn; fewer when the latency is stable before.
        slow_call_s: warming up also ends after so many seconds of calls.
        limit_s: a step that takes longer ends as a timeout.
        seed: of the order of contenders, which is shuffled each round.
        quick: whether the settings are too short for figures to rely on.
        energy: whether energy is measured where there is a counter.
    """

    threads: int
    device: str = "cpu"
    budget_s: float = 180.0
    fewest_rounds: int = 6
    most_rounds: int = 30
    turn_s: float = 0.5
    warm_up_calls: int = 20
    slow_call_s: float = 4.0
    limit_s: float = 900.0
    seed: int = 0
    quick: bool = False
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
        load_average: of the last minute before it began: above `cores`, others were computing.
        governor: how the kernel sets the clock of the first core; None where it does not say.
    """

    started: str
    command: str
    tool_version: str
    machine: Machine
    settings: Settings
    energy: EnergySource
    load_average: float
    governor: str | None = None


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
class Floor:
    """The least time a call can take at given rates, and what bounds it: `compute` or `memory`."""

    floor_ms: float
    bound: str


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
    def main_type(self) -> str:
        """The type that most operations are done in."""
        return max(self.flops_by_type, key=lambda kind: self.flops_by_type[kind])

    @property
    def least_bytes(self) -> int:
        """What any implementation moves: weights, inputs and outputs once."""
        return self.weights_bytes + self.input_bytes + self.output_bytes

    def floor(self, flops_per_s: Mapping[str, float], bytes_per_s: float) -> Floor | None:
        """The longer of the products at their rates and of the bytes that any implementation moves.

        None where a type of the products has no rate.
        """
        if not self.flops_by_type.keys() <= flops_per_s.keys():
            return None
        compute_ms = 1000 * sum(flops / flops_per_s[kind] for kind, flops in self.flops_by_type.items())
        memory_ms = 1000 * self.least_bytes / bytes_per_s
        return Floor(compute_ms, "compute") if compute_ms >= memory_ms else Floor(memory_ms, "memory")


@dataclass(frozen=True)
class TraceCost:
    """One call of a PyTorch program in eager execution, learned without running it.

    Attributes:
        work: operations and bytes; activations are not told apart from temporaries.
        peak_bytes: most that is alive at once, weights and input included; a kernel's own scratch is not seen.
        largest_bytes: its largest tensor, which no runtime can do without that keeps the tensor whole.
        largest_shape: its shape.
        tokens: length of the token sequence, None where the module does not say.
    """

    work: Work
    peak_bytes: int
    largest_bytes: int
    largest_shape: tuple[int, ...]
    tokens: int | None


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
class Predicted:
    """The floor on a device that is not here, from its datasheet; never a measurement."""

    device: str
    predicted_floor_ms: float
    bound: str


@dataclass(frozen=True)
class Row:
    """One contender in one cell.

    Attributes:
        status: `ok`, or what ended it; `reason` says why, with the numbers.
        rounds_ms: wall-clock times of its calls, arrays in and arrays out, one tuple for each round in order; empty
            for a round without a turn. One that ended late has its turns up to then.
        warm_up_calls: calls before the first timed one.
        stable: whether the latency had settled by then.
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
    rounds_ms: tuple[tuple[float, ...], ...] = ()
    warm_up_calls: int | None = None
    stable: bool | None = None
    difference_to_eager: float | None = None
    peak_memory_bytes: int | None = None
    work: Work | None = None
    predicted: tuple[Predicted, ...] = ()
    energy: Energy | None = None
    energy_reason: str | None = None
    file_sha256: str | None = None


@dataclass(frozen=True)
class Cell:
    """Contenders measured together: one model, size and batch. The first row is the reference of the others.

    Attributes:
        rounds: number of rounds, fixed before the first.
        steal_share: of the CPU time during the rounds, what the hypervisor gave to others, 0 to 1; None where it
            cannot be told, with the reason.
        load_average: of the last minute when the rounds ended.
        remarks: what else a reader of the figures must know.
    """

    run: str
    model: str
    source: ModelSource
    height: int
    width: int
    batch: int
    tokens: int | None
    rows: tuple[Row, ...]
    rounds: int
    steal_share: float | None = None
    steal_reason: str | None = "not recorded"
    load_average: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def size(self) -> str:
        """Height x width in pixels, for people."""
        return f"{self.height}x{self.width}"

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What the cell is about, whoever measured it."""
        return (self.model, self.height, self.width, self.batch)


RECORDS: dict[str, type] = {"run": Run, "ceilings": Ceilings, "validation": Validation, "cell": Cell}
