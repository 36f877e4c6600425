"""The benchmark from request to results file, on a tiny model; contenders run in this process, one worker each."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from infsa_deploy.bench import limits, prepare, rounds
from infsa_deploy.bench import run as run_module
from infsa_deploy.bench.process import PointEnded
from infsa_deploy.bench.run import BenchRequest, run_bench
from infsa_deploy.bench.worker import Worker, answer
from infsa_deploy.errors import DeployError, ModelError, UsageError
from infsa_deploy.records import results_file
from infsa_deploy.records.bench import FAILED, OK, REFUSED, Settings
from infsa_deploy.records.round_statistics import latency, times_as_fast
from infsa_deploy.runtime import memory
from tests.validation.test_against_reference import damage

SETTINGS = Settings(
    threads=1, fewest_rounds=2, most_rounds=2, turn_s=0.0, warm_up_calls=2, quick=True, energy=False, budget_s=0.0
)


class InProcess:
    """A child that is none: its worker lives here."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker = Worker(settings)

    def ask(self, job, request):
        reply = answer(self._worker, job, request)
        if isinstance(reply, PointEnded):
            raise reply
        return reply

    def close(self) -> None:
        self._worker = Worker(self._settings)


@pytest.fixture(scope="module", autouse=True)
def without_processes():
    with pytest.MonkeyPatch.context() as patched:
        for module in (rounds, run_module):
            patched.setattr(module, "Child", InProcess)
        patched.setattr(limits, "find_spec", lambda name: None)  # OpenVINO stays out of this process
        patched.setattr(rounds, "SETTLE_S", 0.0)
        patched.setattr(memory, "limit_memory", lambda limit_bytes: None)
        yield


def request(output, files, **changes):
    asked = BenchRequest(
        files=tuple(files),
        models=(),
        sizes=(),
        batches=(1,),
        contenders=(),
        baselines=False,
        settings=SETTINGS,
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


def test_facts_are_complete_and_consistent(measured):
    results = measured[1]
    (cell,) = results.cells
    assert cell.rounds == 2
    for row in rows_of(results).values():
        if row.status != OK:
            continue
        assert [len(times) for times in row.rounds_ms] == [1, 1]
        assert latency(row, cell.batch).p50_ms > 0
        assert times_as_fast(cell.rows[0], row) > 0
        assert row.warm_up_calls == 2
        assert row.dtype == "fp32"
        ceilings = results.ceilings_of(cell)
        assert row.work.floor(ceilings.flops_per_s, ceilings.bytes_per_s).floor_ms > 0
        assert [predicted.device for predicted in row.predicted] == ["a100-40gb"]
        assert (row.energy, row.energy_reason) == (None, "energy was not asked for")


def test_the_state_of_the_machine_is_recorded(measured):
    (cell,), (run,) = measured[1].cells, measured[1].runs
    assert (cell.steal_share is None) == (cell.steal_reason is not None)
    assert cell.load_average >= 0
    assert run.load_average >= 0
    assert run.settings == SETTINGS


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
    assert row.rounds_ms == ()


def test_validations_are_remembered_by_hash(measured):
    _, results = measured
    rows = rows_of(results)
    found = {validation.sha256: validation.passed for validation in results.validations}
    assert found == {rows[n].file_sha256: n != "damaged" for n in ("ort-reference", "tiny_linear", "damaged")}


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
        run_bench(request(output, [artefact], settings=replace(SETTINGS, turn_s=3)), ignore)


def test_an_interrupted_benchmark_goes_on(artefact, tmp_path):
    output, titles = tmp_path / "results.jsonl", []

    def interrupt(text, done, total):
        titles.append(text)
        if "batch 2" in text and "round 2" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench(request(output, [artefact], batches=(1, 2)), interrupt)
    (first,) = results_file.read([output]).cells
    assert first.batch == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]
    found = run_bench(request(output, [artefact], batches=(1, 2)), ignore)
    assert found.cells[0] == first
    assert [cell.batch for cell in found.cells] == [1, 2]
    assert found.cells[1].run != first.run


def test_what_cannot_fit_is_refused_with_the_numbers(artefact, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "usable_bytes", lambda: 20_000)
    rows = rows_of(run_bench(request(tmp_path / "results.jsonl", [artefact]), ignore))
    assert {row.status for row in rows.values()} == {REFUSED}
    assert "20 kB are free" in rows["eager"].reason
    assert "at least" in rows["tiny_linear"].reason


def test_one_that_breaks_late_keeps_its_turns(artefact, tmp_path, monkeypatch):
    sample, taken = Worker.sample, []

    def breaking(self, seconds):
        taken.append(self._session.runtime)
        if taken[-1] == "onnxruntime" and taken.count("onnxruntime") == 2:
            raise RuntimeError("it broke")
        return sample(self, seconds)

    monkeypatch.setattr(Worker, "sample", breaking)
    rows = rows_of(run_bench(request(tmp_path / "results.jsonl", [artefact]), ignore))
    assert (rows["tiny_linear"].status, rows["tiny_linear"].reason) == (FAILED, "RuntimeError: it broke")
    assert [len(rows[name].rounds_ms) for name in ("eager", "softmax", "tiny_linear")] == [2, 2, 1]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), ModuleNotFoundError),
        (ModelError("m is a cat.", "", ""), ModelError),
        (RuntimeError("no CUDA device"), DeployError),
    ],
)
def test_what_no_run_can_do_without_is_told_as_it_is(broken, told, tmp_path, monkeypatch):
    def cannot(self, asked):
        raise broken

    monkeypatch.setattr(Worker, "trace", cannot)
    with pytest.raises(told) as caught:
        run_bench(request(tmp_path / "results.jsonl", [], models=("digits_linear",)), ignore)
    assert type(caught.value) is told
    assert not (tmp_path / "results.jsonl").exists()
