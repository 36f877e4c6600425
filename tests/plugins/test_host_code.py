"""The library's host code where kernels need not run: choice of code, grids, limits, contexts and clones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from tests.plugins import cases
from tests.plugins import worker as w
from tests.plugins.build import NATIVE, ROOT, header_flags

FP16 = torch.float16
SMALL = {
    "NeumannAttention": lambda dtype=FP16: cases.neumann(dtype, 2, 40, 2, 16),
    "EnergyPool": lambda dtype=FP16: cases.energy(dtype, 2, 40, 2, 16, 24),
    "CentralityPool": lambda dtype=FP16: cases.centrality(dtype, 2, 40, 2, 24),
}
each_op = pytest.mark.parametrize("op", SMALL)
MOST_BLOCKS = 512  # that tokens are cut into, kMostBlocks of pooling.cpp
ENTRIES = [(80, False), (90, False), (100, False), (120, False), (86, True)]


@pytest.fixture(scope="module")
def probe(built, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("select")
    lines = [
        f'{{"k", DataType::kHALF, 0, {sm}, {str(ptx).lower()}, "k", 128, 0, 1, infsa_code_0, {{{{"BLOCK", 1}}}}}},'
        for sm, ptx in ENTRIES
    ]
    declaration = 'extern "C" unsigned char const infsa_code_0[];'
    table = ["#ifdef INFSA_DECLARATIONS", declaration, "#else", *lines, "#endif"]
    (folder / "kernels.inc").write_text("\n".join(table) + "\n")
    sources = [
        NATIVE / "select_probe.cpp",
        *(ROOT / "plugins" / "src" / name for name in ("kernels.cpp", "driver.cpp")),
    ]
    flags = ["-std=c++17", "-O0", "-w", "-I", folder, "-I", ROOT / "plugins" / "src", *header_flags(built)]
    words = ["g++", *flags, *sources, "-o", folder / "probe", "-ldl"]
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "probe"


def run(built, probe: Path, *words: int) -> list[str]:
    environment = os.environ | {"LD_LIBRARY_PATH": str(built.folder)}
    typed = [str(probe), *map(str, words)]
    return subprocess.run(typed, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_machine_code_runs_on_the_gpus_that_take_it(built, probe) -> None:
    """From SM 90 on on its own SM alone; what has no code of its own takes the PTX, and what is older than all none."""
    expected = {
        75: "none",
        80: "sm 80",
        86: "sm 80",
        87: "sm 80",
        89: "sm 80",
        90: "sm 90",
        95: "ptx 86",
        100: "sm 100",
    }
    expected |= {103: "ptx 86", 110: "ptx 86", 120: "sm 120", 121: "ptx 86"}
    assert run(built, probe) == [f"{sm} {found}" for sm, found in expected.items()]


def test_a_grid_has_at_most_2_to_the_31_blocks(built, probe) -> None:
    """Where the driver would take the low 32 bits of the number, and launch another grid."""
    found = run(built, probe, 2**31 - 1, 2**31, 2**32 + 1)
    assert found[0] == "launched"
    assert f"would need {2**31} blocks" in found[1]
    assert f"would need {2**32 + 1} blocks" in found[2]


@each_op
@pytest.mark.parametrize("axis", [0, 1])
def test_axes_beyond_2_to_the_31_are_refused(worker, op: str, axis: int) -> None:
    """Kernels take sizes as 32-bit numbers."""
    case = SMALL[op]()
    shapes = [list(tensor.shape) for tensor in case.inputs] + [list(shape) for shape in case.shapes]
    for size, refused in ((2**31 - 1, False), (2**31, True), (2**32 + 40, True)):
        largest = [[*shape] for shape in shapes]
        for shape in largest[: len(case.inputs)] if axis == 0 else largest[: 2 if op == "EnergyPool" else 1]:
            shape[axis] = size
        outcome = worker(w.configured, w.Case(case.op, case.fields, case.inputs, case.shapes, largest))
        assert (f"has an axis of {size}; each must be 1 to 2^31 - 1." in outcome) == refused, outcome


def test_tokens_are_cut_into_at_most_512_blocks(worker) -> None:
    """On a GPU of 1000 multiprocessors, for tokens enough: 512 blocks, a workspace for as many, and no more."""
    case = cases.centrality(FP16, 1, 40_000, 1, 24)
    launches, workspace = worker(w.grids, case, 1000)
    blocks = dict(launches)["score_and_pool"]
    assert MOST_BLOCKS / 2 < blocks <= MOST_BLOCKS
    partials = 4 * 16 * (24 + 1)  # bytes of one block: 16 heads, float32 sums of E channels and of the weights
    scores = 4 * 40_000
    assert MOST_BLOCKS * partials + scores <= workspace < 2 * MOST_BLOCKS * partials + scores


@each_op
def test_a_clone_offers_the_type_of_the_node_alone(worker, op: str) -> None:
    """As its original does: TensorRT asks clones, which were not told the type themselves."""
    for dtype, bit in ((torch.float32, 1), (FP16, 2), (torch.bfloat16, 4)):
        found = worker(w.offered, SMALL[op](dtype), True)
        assert found == [bit] * len(found)


@each_op
def test_unloading_leaves_the_current_context(worker, op: str) -> None:
    before, after = worker(w.contexts_after_unloading, SMALL[op]())
    assert before == after
    assert before


@each_op
def test_addresses_must_be_those_that_kernels_are_promised(worker, op: str) -> None:
    """Multiples of 16 bytes, which is checked before anything is launched."""
    case = SMALL[op]()
    names = [f"input {i}" for i in range(len(case.inputs))] + [f"output {i}" for i in range(len(case.shapes))]
    *found, aligned = worker(w.misaligned, case)
    for name, message in zip([*names, "workspace 0"], found, strict=True):
        assert message.startswith("-1 ")
        assert f"{op}: {name} lies at an address that is no multiple of 16 bytes." in message
    assert aligned == "0 "
