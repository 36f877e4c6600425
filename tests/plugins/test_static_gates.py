"""What the compiler made of the kernels: registers, shared memory, tensor cores; and the size of the library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import static_report

from tests.plugins.build import ROOT

COMMITTED = ROOT / "benchmarks" / "kernel_report.json"  # what aot.py reported for SM 80 and 90


def compiled(sm: int) -> list[dict]:
    """The report for an SM, whose kernels are compiled where the cache has none: two minutes for another than 80."""
    command = [sys.executable, str(ROOT / "plugins" / "aot.py"), "--report", "--json", "--sm", str(sm)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 6), result.stderr
    return json.loads(result.stdout)


@pytest.fixture(
    scope="module",
    params=["SM 80", "committed", pytest.param("SM 90", marks=pytest.mark.long)],  # its result: COMMITTED
)
def report(request, built) -> list[dict]:
    if request.param == "committed":
        return json.loads(COMMITTED.read_text())
    return compiled(int(request.param.removeprefix("SM ")))


def test_gates(report) -> None:
    assert report
    assert [row for row in report if row["failures"]] == []


def test_every_product_is_on_tensor_cores_in_its_loop(report) -> None:
    for name in ("attend", "attend_cut", "hop", "pool", "score", "score_and_pool"):
        counts = [row["tensor_core_loop"] for row in report if row["kernel"] == name]
        assert counts
        assert min(counts) >= 8, name


def test_streaming_kernels_copy_asynchronously(report) -> None:
    names = ("attend", "attend_cut", "hop", "pool", "score_and_pool")
    assert all(row["async_copies"] for row in report if row["kernel"] in names)


def test_the_committed_report_is_of_the_same_kernels(report) -> None:
    """Of each SM that is compiled here; what the compiler made of them may differ with its version."""
    variants = [
        {(row["kernel"], row["dtype"], row["limit"], row["sm"]) for row in rows}
        for rows in (report, json.loads(COMMITTED.read_text()))
    ]
    assert variants[0] <= variants[1]
    assert {sm for *_, sm in variants[1]} == {80, 90}


def test_the_gates_can_fail(monkeypatch) -> None:
    """Machine code with a spill, with more than an SM has, and with a tensor-core instruction outside of a loop."""
    before = "/*0010*/ HMMA.16816.F32 R0, R1, R2, R3 ;\n/*0020*/ STL [R1], R4 ;\n/*0030*/ @P0 BRA 0x20 ;"
    inside = before.replace("0x20", "0x10")
    entry = {"kernel": "attend", "dtype": "fp16", "limit": 64, "sm": 86, "warps": 8, "code": before}
    monkeypatch.setattr(
        static_report, "_dump", lambda option, code: code if option == "-sass" else "REG:255 STACK:16 SHARED:0"
    )
    assert static_report.usage(entry | {"shared": 100 * 1024}, True).failures == [
        "spills 16 bytes",
        "shared memory beyond the SM's limit",
        "no tensor core in a loop",
        "does not fit an SM",
    ]
    tidy = entry | {"shared": 99 * 1024, "code": inside.replace("STL", "STS")}
    assert static_report.usage(tidy, True).failures == []
