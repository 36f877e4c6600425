"""`bench` and `report` as typed."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from infsa_deploy.cli.bench import sweep_sizes
from infsa_deploy.cli.output.bench import as_json, terminal_table
from infsa_deploy.errors import UsageError
from infsa_deploy.records.bench import Cell, Energy
from infsa_deploy.records.results_file import Results
from tests.records.test_results_file import RECORDS
from tests.report.conftest import CEILINGS, RUN, sweep


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--contender", "our-fp32"), 2, "ours-fp32"),
        (("--sweep", "300:310"), 2, "224"),
        (("--size", "big"), 2, "480x640"),
        (("--batch", "0"), 2, "batch"),
        (("--predict", "v100"), 2, "a100-40gb"),
        (("-o", "nowhere/results.jsonl"), 2, "mkdir"),
        (("missing.onnx",), 4, "does not exist"),
    ],
)
def test_bench_errors(run, tmp_path, options, code, message):
    ended, out, err = run("bench", *options)
    assert (ended, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_bench_does_not_add_to_what_is_no_results_file(run, tmp_path):
    (tmp_path / "bench.jsonl").write_text(json.dumps({"my": "file"}) + "\n")
    code, _, err = run("bench", "--quick")
    assert code == 4
    assert "no benchmark results" in err
    assert json.loads((tmp_path / "bench.jsonl").read_text()) == {"my": "file"}


def test_bench_does_not_mix_machines(run, tmp_path):
    from infsa_deploy.records.results_file import append

    for record in RECORDS:
        append(tmp_path / "bench.jsonl", record)
    code, _, err = run("bench", "--quick")
    assert code == 2
    assert "another machine" in err


@pytest.fixture
def results():
    return Results((RUN,), (CEILINGS,), (), tuple(sweep()))


def shown(results: Results, cell: Cell) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_table(results, cell))
    return console.export_text()


def test_the_table_shows_figures_and_reasons(results):
    text = shown(results, results.cells[2])
    assert "infvit_linear_4l, 1024x1024, batch 1" in text
    assert "softmax: refused: it needs 99.0 GB, and 7.0 GB are free." in " ".join(text.split())
    assert re.search(r"ours +413\.8 +\d+\.\d% +2\.417 +5\.00 \(5\.00-5\.00\)", text)
    assert "!" not in text


def test_the_table_says_loudly_that_a_quick_run_is_rough(results):
    quick = replace(RUN, settings=replace(RUN.settings, quick=True))
    text = shown(replace(results, runs=(quick,)), results.cells[2])
    assert "! all: quick run: the numbers are rough." in text
    assert re.search(r"ours +413\.8 !", text)


def test_the_table_has_energy_where_it_was_measured(results):
    cell = results.cells[0]
    without = tuple(replace(row, energy=None) for row in cell.rows)
    assert "J/image" not in shown(results, replace(cell, rows=without))
    energy = Energy(6.672, 5.83, 75.6, 3, 5.2, 0.007, 90.0, 1980, 700.0)
    rows = (replace(without[0], energy=energy), *without[1:])
    assert "6.67" in shown(results, replace(cell, rows=rows))


def test_json_has_the_figures_and_their_warnings(results):
    first, _, last = json.loads(as_json(results))
    assert first["warnings"] == ["load average 5.0 on 2 cores at the end of the rounds"]
    ours, refused = last["rows"][2], last["rows"][1]
    assert ours["speedup_to_eager"] == pytest.approx(5.0)
    assert ours["speedup_interval"] == pytest.approx([5.0, 5.0])
    assert ours["latency"]["p50_ms"] == pytest.approx(ours["floor"]["achieved_over_floor"] * ours["floor"]["floor_ms"])
    assert ours["warnings"] == []
    assert (refused["latency"], refused["floor"], refused["status"]) == (None, None, "refused")
    assert "rounds_ms" not in ours


def test_report(run, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `plot` (matplotlib), which is not installed")
    from infsa_deploy.records.results_file import append

    for record in RECORDS:
        append(tmp_path / "results.jsonl", record)
    code, out, _ = run("report", "results.jsonl")
    assert code == 0
    assert "report/report.html" in out.splitlines()
    assert all((tmp_path / line).is_file() for line in out.splitlines())
    assert run("report", "missing.jsonl")[0] == 4
    assert run("report")[0] == 2


def test_sweep():
    assert sweep_sizes("224:1024") == ((224, 224), (384, 384), (512, 512), (1024, 1024))
    assert sweep_sizes("512") == ((512, 512),)
    for wrong in ("225:300", "1024:224", "x", ":"):
        with pytest.raises(UsageError):
            sweep_sizes(wrong)
