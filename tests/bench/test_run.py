"""The benchmark from request to results file: real contenders in real processes, on a tiny model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from infsa_deploy import results_file
from infsa_deploy.bench import prepare
from infsa_deploy.bench import run as run_module
from infsa_deploy.bench.contenders import Contender
from infsa_deploy.bench.plan import CellPlan
from infsa_deploy.bench.run import Request, _known, _measured, _with_threads, _work_folder, run_bench
from infsa_deploy.bench.settings import settings_for
from infsa_deploy.errors import UsageError
from infsa_deploy.measurements import OK, REFUSED
from infsa_deploy.results_file import Results
from tests.test_validate import damage

NOTHING = Results((), (), (), ())
SETTINGS = settings_for(1, "cpu", quick=True, energy=False)


def request(output, files, **changes):
    asked = Request(
        files=tuple(files),
        models=(),
        sizes=(),
        batches=(1,),
        contenders=(),
        baselines=False,
        settings=SETTINGS,
        quick=True,
        predict=(),
        output=output,
        command="infsa-deploy bench ...",
    )
    return replace(asked, **changes)


def ignore(text, done, total):
    pass


@pytest.fixture(scope="module")
def measured(artefact, tmp_path_factory):
    """One benchmark of everything at once: a good artefact, a damaged one, an own export and a baseline."""
    folder = tmp_path_factory.mktemp("bench")
    damaged = folder / "damaged.onnx"
    shutil.copy(artefact, damaged)
    damage(damaged, 1e-3)
    output = folder / "results.jsonl"
    chosen = {"contenders": ("ort-reference",), "baselines": True, "predict": ("a100-40gb",)}
    return output, run_bench(request(output, [artefact, damaged], **chosen), ignore)


def rows_of(results):
    (cell,) = results.cells
    return {row.contender: row for row in cell.rows}


def test_every_contender_is_a_row(measured):
    rows = rows_of(measured[1])
    assert list(rows) == ["eager", "softmax", "ort-reference", "linformer", "performer", "tiny_linear", "damaged"]
    assert {row.status for name, row in rows.items() if name != "damaged"} == {OK}


def test_figures_are_complete_and_consistent(measured):
    for row in rows_of(measured[1]).values():
        if row.status != OK:
            continue
        assert row.latency.calls >= SETTINGS.rounds
        assert len(row.latency.round_p50_ms) == SETTINGS.rounds
        assert row.latency.images_per_s == pytest.approx(1000 / row.latency.p50_ms)
        assert row.floor.achieved_over_floor == pytest.approx(row.latency.p50_ms / row.floor.floor_ms)
        assert row.work.flops > 0
        assert [predicted.device for predicted in row.predicted] == ["a100-40gb"]
        assert (row.energy, row.energy_reason) == (None, "energy was not asked for")
    assert rows_of(measured[1])["eager"].speedup_to_eager == 1.0


def test_how_quiet_the_machine_was_is_known_or_said_not_to_be(measured):
    (cell,) = measured[1].cells
    if cell.others_cpu_share is None:
        assert "/proc/stat" in cell.others_cpu_reason
    else:
        assert 0 <= cell.others_cpu_share <= 1
        assert cell.others_cpu_reason is None


def test_outputs_are_compared_with_eagers(measured):
    rows = rows_of(measured[1])
    assert rows["eager"].difference_to_eager == 0.0
    for name in ("ort-reference", "tiny_linear"):
        assert rows[name].difference_to_eager < 1e-5
    assert all(rows[name].difference_to_eager is None for name in ("softmax", "linformer", "performer"))


def test_what_validate_does_not_pass_is_refused(measured):
    row = rows_of(measured[1])["damaged"]
    assert row.status == REFUSED
    assert "validate does not pass it" in row.reason
    assert row.latency is None


def test_validations_are_remembered_by_hash(measured, artefact):
    _, results = measured
    rows = rows_of(results)
    found = {validation.sha256: validation.passed for validation in results.validations}
    assert found[rows["tiny_linear"].file_sha256] is True
    assert len(found) == 3
    assert sum(found.values()) == 2


def test_nothing_is_left_beside_the_results(measured):
    output, _ = measured
    assert sorted(path.name for path in output.parent.iterdir()) == ["damaged.onnx", "results.jsonl"]


def test_a_cell_that_is_there_is_not_measured_again(measured, artefact):
    output, results = measured
    before = output.read_bytes()
    again = run_bench(request(output, [artefact]), ignore)
    assert output.read_bytes() == before
    assert again.cells == results.cells


def test_other_settings_do_not_mix(measured, artefact):
    output, _ = measured
    with pytest.raises(UsageError, match="other settings"):
        run_bench(request(output, [artefact], settings=replace(SETTINGS, rounds=3)), ignore)


def test_a_file_that_has_changed_is_measured_again(measured, artefact):
    _, results = measured
    (cell,) = results.cells
    size = (cell.height, cell.width)
    for name in ("tiny_linear", "damaged"):  # one with figures, one refused
        known = rows_of(results)[name].file_sha256
        for sha256, there in ((known, True), ("of another file", False)):
            who = (Contender(name, "", "onnxruntime", "file", file="it", sha256=sha256),)
            assert _measured(CellPlan(cell.model, cell.source, *size, cell.batch, who), results) is there


def test_free_cores_are_watched_only_where_no_one_says_how_many_threads(measured, monkeypatch):
    monkeypatch.setattr(run_module, "free_cores", lambda: 3)
    assert _with_threads(request("new.jsonl", [], threads_asked=False), NOTHING).settings.threads == 3
    monkeypatch.delattr(run_module, "free_cores")
    assert _with_threads(request("new.jsonl", []), NOTHING).settings == SETTINGS
    assert _with_threads(request("old.jsonl", [], threads_asked=False), measured[1]).settings == SETTINGS


def test_a_run_that_measured_nothing_binds_no_one(measured, tmp_path):
    """One that ended at once, such as for a GPU where there is none, leaves its record and no cell."""
    output, results = measured
    ended = replace(results.runs[0], started="ended at once", settings=replace(SETTINGS, threads=7, device="cuda"))
    results_file.append(tmp_path / "only.jsonl", ended)
    assert _known(request(tmp_path / "only.jsonl", [])) == NOTHING
    shutil.copy(output, tmp_path / "both.jsonl")
    results_file.append(tmp_path / "both.jsonl", ended)
    assert _known(request(tmp_path / "both.jsonl", [])) == results_file.read([output])


def test_a_run_that_names_no_threads_goes_on_with_those_of_the_file(measured, artefact):
    output, results = measured
    more = replace(SETTINGS, threads=SETTINGS.threads + 1)
    assert run_bench(request(output, [artefact], settings=more, threads_asked=False), ignore).cells == results.cells
    with pytest.raises(UsageError, match="other settings"):
        run_bench(request(output, [artefact], settings=more), ignore)


def test_what_cannot_fit_is_refused_with_the_numbers(artefact, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "available_bytes", lambda: 20_000)
    rows = rows_of(run_bench(request(tmp_path / "results.jsonl", [artefact]), ignore))
    assert {row.status for row in rows.values()} == {REFUSED}
    assert "20 kB are free" in rows["eager"].reason
    assert "at least" in rows["tiny_linear"].reason


def test_a_killed_benchmark_goes_on(artefact, tmp_path):
    output = tmp_path / "results.jsonl"
    typed = ["bench", str(artefact), "--quick", "--threads", "1", "--batch", "1", "--batch", "2", "--no-energy"]
    script = "import sys\nfrom infsa_deploy.cli import main\nmain(sys.argv[1:])"
    command = [sys.executable, "-c", script, *typed, "-o", str(output)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, env=paths, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (output.exists() and b'"cell"' in output.read_bytes()):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = results_file.read([output]).cells
    assert [cell.batch for cell in first] == [1]
    subprocess.run(command, env=paths, check=True, capture_output=True)
    cells = results_file.read([output]).cells
    assert [cell.batch for cell in cells] == [1, 2]
    assert cells[0] == first[0]
    assert cells[1].run != cells[0].run
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_two_at_once_on_one_file(tmp_path):
    output = tmp_path / "results.jsonl"
    with _work_folder(output) as folder:
        with pytest.raises(UsageError, match="another benchmark"), _work_folder(output):
            pass
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt), _work_folder(output):
        raise KeyboardInterrupt
    assert not folder.exists()
