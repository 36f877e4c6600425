"""Files made ready once a model and size, whatever the batch."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from infsa_deploy.bench import prepare as prepare_module
from infsa_deploy.bench.contenders import choose
from infsa_deploy.bench.field import Entry
from infsa_deploy.bench.plan import CellPlan
from infsa_deploy.bench.prepare import Bench, Preparation
from infsa_deploy.config import ModelSource
from infsa_deploy.measurements import EnergySource, Settings, Validation, Work

NO_ENERGY = EnergySource(None, None, None, "no counter")
TRACE = {
    "image": [3, 16, 16],
    "work": asdict(Work({"fp32": 1}, 1, 1, 1, None)),
    "peak_bytes": 1,
    "largest_bytes": 1,
    "largest_shape": [1],
    "tokens": 5,
    "source": asdict(ModelSource(model="m")),
}


class Workshop:
    """Answers as a child would, and writes down what it exported."""

    def __init__(self) -> None:
        self.need_bytes = 1
        self.exported: list[str] = []
        self.started_from: list[str | None] = []

    def ask(self, do: str, **arguments):
        if do == "export":
            Path(arguments["path"]).write_text("a model")
            self.exported.append(Path(arguments["path"]).name)
            self.started_from.append(arguments["exported"])
            return arguments["path"]
        if do == "need":
            return self.need_bytes
        if do == "validate":
            return asdict(Validation(arguments["sha256"], True, ""))
        return TRACE if do == "trace" else None


@pytest.fixture
def bench(tmp_path):
    return Bench("run", Settings(1), tmp_path, NO_ENERGY, None, (), {}, lambda found: None, lambda text: None)


def entries(bench: Bench, workshop: Workshop, *names: str, side: int = 16, batch: int = 1) -> dict[str, Entry]:
    """What becomes of the named contenders, and of those that always run, by name."""
    source = ModelSource(model="m", image_size=(side, side))
    contenders = choose(names, baselines=False, files=False)
    preparation = Preparation(CellPlan("m", source, side, side, batch, contenders), bench, workshop)
    return {contender.name: preparation.entry(contender) for contender in contenders}


def prepare(bench: Bench, workshop: Workshop, side: int, batch: int):
    found = entries(bench, workshop, "ours-fp32", "ours-openvino-fp32", "ours-int8", side=side, batch=batch)
    return [entry.opening["path"] for entry in found.values() if entry.contender.export]


def test_one_export_of_a_form_at_a_size(bench):
    workshop = Workshop()
    first, second = (prepare(bench, workshop, 16, batch) for batch in (1, 2))
    assert first == second
    assert workshop.exported == ["m_16x16_ours-fp32.onnx", "m_16x16_ours-int8.onnx"]
    assert workshop.started_from == [None, first[0]]


def test_a_file_of_another_program_is_its_own(bench):
    workshop = Workshop()
    found = entries(bench, workshop, "ours-fp32", "pure-fp32")
    assert workshop.exported == ["m_16x16_ours-fp32.onnx", "m_16x16_pure-fp32.onnx"]
    assert found["ours-fp32"].opening["path"] != found["pure-fp32"].opening["path"]
    assert workshop.started_from == [None, None]


def test_files_of_one_size_only_are_kept(bench, tmp_path):
    workshop = Workshop()
    prepare(bench, workshop, 16, batch=1)
    (tmp_path / "m_16x16_ours-fp32.onnx.data").write_text("weights kept apart")
    paths = prepare(bench, workshop, 32, batch=1)
    assert {path.name for path in tmp_path.iterdir()} == {Path(path).name for path in paths}
    assert len(workshop.exported) == 4


def test_what_could_not_be_validated_is_not_exported(bench, monkeypatch):
    workshop = Workshop()
    monkeypatch.setattr(prepare_module, "available_bytes", lambda: 2)  # a call fits, its reference in float64 does not
    monkeypatch.setitem(TRACE, "work", asdict(Work({"fp32": 1}, 0, 0, 1, None)))
    found = entries(bench, workshop, "ours-fp32")
    assert found["ours-fp32"].ended.reason.endswith("in float64 here: that takes 3 B, and 2 B are free")
    assert found["eager"].ended is None
    assert workshop.exported == []


def test_what_works_in_tiles_is_not_refused_for_what_it_never_holds(bench, monkeypatch):
    monkeypatch.setitem(TRACE, "largest_bytes", 100)
    monkeypatch.setattr(prepare_module, "available_bytes", lambda: 10)
    found = entries(bench, Workshop(), "ours-fp32", "ours-openvino-fp32")
    ours, on_openvino = found["ours-fp32"], found["ours-openvino-fp32"]
    assert (ours.ended, ours.need_bytes) == (None, 1)
    whole = "it needs at least 102 B (its largest tensor, 1, takes 100 B), and 10 B are free"
    assert on_openvino.ended.reason == whole
    assert on_openvino.work is None  # the trace's is the reference's
    workshop = Workshop()
    workshop.need_bytes = 50
    refused = entries(bench, workshop, "ours-fp32", "ours-openvino-fp32")["ours-fp32"]
    assert refused.ended.reason == "it needs at least 50 B, and 10 B are free"


def test_a_validation_that_did_not_pass_is_not_asked_for_again(bench):
    workshop = Workshop()
    (path, *_) = prepare(bench, workshop, 16, batch=1)
    bench.validations[path] = replace(bench.validations[path], passed=False)
    found = entries(bench, workshop, "ours-fp32", batch=2)
    assert "validate does not pass it" in found["ours-fp32"].ended.reason
    assert found["eager"].ended is None
