"""Results as a benchmark would have written them: a sweep with refusals, energy, predictions, on a machine made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infsa_deploy.config import ModelSource
from infsa_deploy.measurements import (
    Ceilings,
    Cell,
    Energy,
    EnergySource,
    Floor,
    Latency,
    Machine,
    Predicted,
    Row,
    Run,
    Settings,
    Work,
)
from infsa_deploy.results_file import Results, append

COMMAND = "infsa-deploy bench --model infvit_linear_4l --sweep 224:1024"
MACHINE = Machine("Imaginary CPU", 2, 2**34, "Linux x86_64, Python 3.12", (), {"torch": "2.13"})
RUN = Run("2030-01-02T03:04:05", COMMAND, "0.1.0", MACHINE, Settings(2), EnergySource("replay", 0.1, 20.0, None), 0.1)
CEILINGS = Ceilings(RUN.started, {"fp32": 1e11, "int8": 4e11}, 2e10, {"fp32": "p", "int8": "q", "copy": "c"})


def row(name: str, ms: float, tokens: int) -> Row:
    return Row(
        contender=name,
        about=f"about {name} <b>",
        runtime="eager",
        dtype="fp32",
        status="ok",
        latency=Latency(12, (ms, ms), ms, ms * 1.25, None, 0.034, 1000 / ms, 3, True),
        speedup_to_eager=100 * tokens / 197 / ms,
        speedup_interval=(95 * tokens / 197 / ms, 110 * tokens / 197 / ms),
        difference_to_eager=3e-7,
        peak_memory_bytes=400_000_000 + 1000 * tokens,
        work=Work({"fp32": 10**9}, 10**8, 10**6, 4000, None),
        floor=Floor(ms / 2, "compute", 2.0),
        predicted=(Predicted("a100-40gb", 0.25, "memory"),),
        energy=Energy(5.5, 4.5, 20.0, 3, 5.0, 0.01, 9.0, 1410, 400.0),
    )


def cell(side: int, *rows: Row) -> Cell:
    source = ModelSource(model="infvit_linear_4l", image_size=(side, side))
    return Cell(RUN.started, "infvit_linear_4l", source, side, side, 1, (side // 16) ** 2 + 1, rows)


def sweep() -> list[Cell]:
    cells = []
    for side in (224, 512, 1024):
        tokens = (side // 16) ** 2 + 1
        fits = row("softmax", 0.9 * tokens, tokens)
        refused = Row("softmax", "about", "eager", "fp32", "refused", "it needs 99.0 GB, and 7.0 GB are free")
        rows = (row("eager", 0.5 * tokens, tokens), fits if side < 1024 else refused, row("ours", 0.1 * tokens, tokens))
        cells.append(cell(side, *rows))
    return cells


@pytest.fixture
def results() -> Results:
    return Results((RUN,), (CEILINGS,), (), tuple(sweep()))


@pytest.fixture
def on_an_a100(results) -> Results:
    machine = replace(MACHINE, gpus=("NVIDIA A100-SXM4-40GB, 580.1",))
    return replace(results, runs=(replace(RUN, machine=machine),))


@pytest.fixture
def written(results, tmp_path):
    path = tmp_path / "results.jsonl"
    for record in (RUN, CEILINGS, *results.cells):
        append(path, record)
    return path
