"""`bench` and `report` as typed."""

from __future__ import annotations

import io
import json

import pytest

from infsa_deploy.cli.bench_tables import cells_table
from infsa_deploy.measurements import Energy
from tests.report.conftest import sweep
from tests.test_results_file import RECORDS


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
    from infsa_deploy.results_file import append

    for record in RECORDS:
        append(tmp_path / "bench.jsonl", record)
    code, _, err = run("bench", "--quick")
    assert code == 2
    assert "another machine" in err


def test_the_table_shows_figures_and_reasons():
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(cells_table(sweep()[2]))
    text = console.export_text()
    assert "infvit_linear_4l, 1024x1024, batch 1" in text
    assert "refused" in text
    assert "99.0 GB" in text
    assert "3.4%" in text


def test_the_table_has_energy_where_it_was_measured():
    from dataclasses import replace

    from rich.console import Console

    def shown(rows):
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(cells_table(replace(cell, rows=rows)))
        return console.export_text()

    cell = sweep()[0]
    without = tuple(replace(row, energy=None) for row in cell.rows)
    assert "J/image" not in shown(without)
    energy = Energy(6.672, 5.83, 75.6, 3, 5.2, 0.007, 90.0, 1980, 700.0)
    assert "6.67" in shown((replace(without[0], energy=energy), *without[1:]))


def test_report(run, tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra `plot` (matplotlib), which is not installed")
    from infsa_deploy.results_file import append

    for record in RECORDS:
        append(tmp_path / "results.jsonl", record)
    code, out, _ = run("report", "results.jsonl")
    assert code == 0
    assert "report/report.html" in out.splitlines()
    assert all((tmp_path / line).is_file() for line in out.splitlines())
    assert run("report", "missing.jsonl")[0] == 4
    assert run("report")[0] == 2
