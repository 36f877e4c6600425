"""Results as a benchmark would have written them: a sweep with refusals, energy, predictions, on a machine made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infsa_deploy.config import ModelSource
from infsa_deploy.records.bench import (
    Ceilings,
    Cell,
    Energy,
    EnergySource,
    Machine,
    Predicted,
    Row,
    Run,
    Settings,
    Work,
)
from infsa_deploy.records.results_file import Results, append
from infsa_deploy.report import figures

COMMAND = "infsa-deploy bench --model infvit_linear_4l --sweep 224:1024"
MACHINE = Machine("Imaginary CPU", 2, 2**34, "Linux x86_64, Python 3.12", (), {"torch": "2.13"})
RUN = Run("2030-01-02T03:04:05", COMMAND, "0.1.0", MACHINE, Settings(2), EnergySource("replay", 0.1, 20.0, None), 0.1)
CEILINGS = Ceilings(RUN.started, {"fp32": 1e11, "int8": 4e11}, 2e10, {"fp32": "p", "int8": "q", "copy": "c"})


def row(name: str, ms: float, tokens: int) -> Row:
    """Calls of seven rounds, around `ms`; the first round is slow."""
    return Row(
        contender=name,
        about=f"about {name} <b>",
        runtime="eager",
        dtype="fp32",
        status="ok",
        rounds_ms=((ms * 1.5,), *[(ms, ms * 1.01)] * 6),
        warm_up_calls=3,
        stable=True,
        difference_to_eager=3e-7,
        peak_memory_bytes=400_000_000 + 1000 * tokens,
        work=Work({"fp32": 10**9}, 10**8, 10**6, 4000, None),
        predicted=(Predicted("a100-40gb", 0.25, "memory"),),
        energy=Energy(5.5, 4.5, 20.0, 3, 5.0, 0.01, 9.0, 1410, 400.0),
    )


def cell(side: int, *rows: Row, load: float = 0.5) -> Cell:
    source = ModelSource(model="infvit_linear_4l", image_size=(side, side))
    return Cell(
        RUN.started, "infvit_linear_4l", source, side, side, 1, (side // 16) ** 2 + 1, rows, 7, 0.01, None, load
    )


def sweep() -> list[Cell]:
    cells = []
    for side in (224, 512, 1024):
        tokens = (side // 16) ** 2 + 1
        fits = row("softmax", 0.9 * tokens, tokens)
        refused = Row("softmax", "about", "eager", "fp32", "refused", "it needs 99.0 GB, and 7.0 GB are free")
        rows = (row("eager", 0.5 * tokens, tokens), fits if side < 1024 else refused, row("ours", 0.1 * tokens, tokens))
        cells.append(cell(side, *rows, load=5.0 if side == 224 else 0.5))
    return cells


@pytest.fixture(scope="session")
def results() -> Results:
    return Results((RUN,), (CEILINGS,), (), tuple(sweep()))


@pytest.fixture
def on_an_a100(results) -> Results:
    machine = replace(MACHINE, gpus=("NVIDIA A100-SXM4-40GB, 580.1",))
    return replace(results, runs=(replace(RUN, machine=machine),))


@pytest.fixture(scope="session", autouse=True)
def coarse():
    """Figures of few pixels, which are drawn sooner."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(figures, "DPI", 20)
        yield


@pytest.fixture(scope="session")
def written(results, coarse, tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    for record in (RUN, CEILINGS, *results.cells):
        append(path, record)
    return path
