"""Files made ready once a model and size, whatever the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infsa_deploy.bench import prepare as prepare_module
from infsa_deploy.bench.contenders import choose
from infsa_deploy.bench.plan import CellPlan
from infsa_deploy.bench.prepare import Entry, Preparation
from infsa_deploy.bench.process import Counted, PointEnded, Traced
from infsa_deploy.config import ModelSource
from infsa_deploy.records.bench import FAILED, REFUSED, Settings, TraceCost, Validation, Work

COST = TraceCost(Work({"fp32": 1}, 1, 1, 1, None), peak_bytes=1, largest_bytes=1, largest_shape=(1,), tokens=5)


class Child:
    """Answers as a child would, and writes down what it exported, validated and traced."""

    def __init__(self) -> None:
        self.cost, self.need_bytes, self.passes, self.breaks = COST, 1, True, ""
        self.exported: list[str] = []
        self.validated: list[str] = []
        self.traced: list[str] = []

    def ask(self, job, request):
        if job.__name__ == self.breaks:
            raise PointEnded(FAILED, "it broke")
        return getattr(self, job.__name__)(request)

    def trace(self, request):
        self.traced.append(request.program)
        return Traced(self.cost, (3, 16, 16), ModelSource(model=f"{request.program} of m"))

    def export(self, request):
        Path(request.path).write_text("a model")
        self.exported.append(Path(request.path).name)
        return f"hash of {request.source.model} {request.config}"

    def count(self, request):
        return Counted(self.need_bytes, Work({"fp32": 2}, 1, 1, 1, 1))

    def validate(self, request):
        self.validated.append(request.sha256)
        return Validation(request.sha256, self.passes, "by far")

    def close(self):
        pass


@pytest.fixture
def child():
    return Child()


@pytest.fixture
def remembered():
    return []


@pytest.fixture
def prepare(child, remembered, tmp_path):
    """Prepare the named contenders, and those that always run; returns what becomes of them by name."""
    preparation = Preparation(child, Settings(1), tmp_path, {}, remembered.append)

    def entries(*names: str, side: int = 16, batch: int = 1) -> dict[str, Entry]:
        source = ModelSource(model="m", image_size=(side, side))
        contenders = choose(names, baselines=False, files=False)
        plan = CellPlan("m", source, side, side, batch, contenders)
        return {entry.contender.name: entry for entry in preparation.cell(plan, lambda text: None)}

    return entries


OURS = ("ours-fp32", "ours-openvino-fp32", "ours-int8")


def paths(entries: dict[str, Entry]) -> list[str]:
    return [entry.opening.path for entry in entries.values() if entry.opening.path]


def test_one_export_of_a_form_at_a_size(prepare, child, remembered):
    first, second = (paths(prepare(*OURS, batch=batch)) for batch in (1, 2))
    assert first == second
    assert child.exported == ["ours-fp32.onnx", "ours-int8.onnx"]
    assert len(child.validated) == len(remembered) == 2
    assert child.traced == ["reference", "softmax"] * 2  # once a batch


def test_a_file_of_another_program_is_its_own(prepare, child):
    found = prepare("ours-fp32", "pure-fp32")
    assert child.exported == ["ours-fp32.onnx", "pure-fp32.onnx"]
    assert found["ours-fp32"].sha256 != found["pure-fp32"].sha256
    assert found["pure-fp32"].opening.path != found["ours-fp32"].opening.path


def test_files_of_one_size_only_are_kept(prepare, child, tmp_path):
    prepare(*OURS)
    (tmp_path / "exports" / "ours-fp32.onnx.data").write_text("weights kept apart")
    kept = paths(prepare(*OURS, side=32))
    assert set(map(str, (tmp_path / "exports").iterdir())) == set(kept)
    assert len(child.exported) == 4


def test_a_file_counts_its_work_in_the_type_that_runs(prepare):
    found = prepare("openvino-bf16", "ours-fp32")
    assert found["eager"].work == COST.work
    assert found["ours-fp32"].work.flops_by_type == {"fp32": 2}
    assert found["openvino-bf16"].work.flops_by_type == {"bf16": 2}


def test_what_could_not_be_validated_is_not_exported(prepare, child, monkeypatch):
    monkeypatch.setattr(prepare_module, "usable_bytes", lambda: 2)  # a call fits, its reference in float64 does not
    found = prepare("ours-fp32")
    assert found["ours-fp32"].ended.reason.endswith("in float64 here: that takes 3 B, and 2 B are free")
    assert found["eager"].ended is None
    assert child.exported == []


def test_what_works_in_tiles_is_not_refused_for_what_it_never_holds(prepare, child, monkeypatch):
    child.cost = replace(COST, largest_bytes=100)
    monkeypatch.setattr(prepare_module, "usable_bytes", lambda: 10)
    found = prepare("ours-fp32", "ours-openvino-fp32")
    ours, on_openvino = found["ours-fp32"], found["ours-openvino-fp32"]
    assert (ours.ended, ours.need_bytes) == (None, 1)
    whole = "it needs at least 102 B (its largest tensor, 1, takes 100 B), and 10 B are free"
    assert (on_openvino.ended.status, on_openvino.ended.reason) == (REFUSED, whole)
    child.need_bytes = 50
    refused = prepare("ours-fp32", "ours-openvino-fp32", side=32)["ours-fp32"]
    assert refused.ended.reason == "it needs at least 50 B, and 10 B are free"


def test_eager_is_refused_with_what_it_takes(prepare, child, monkeypatch):
    child.cost = replace(COST, peak_bytes=20)
    monkeypatch.setattr(prepare_module, "usable_bytes", lambda: 10)
    found = prepare()["eager"]
    assert found.ended.reason == "it needs 20 B (its largest tensor, 1, takes 1 B), and 10 B are free"


def test_a_validation_that_did_not_pass_is_not_asked_for_again(prepare, child):
    child.passes = False
    for batch in (1, 2):
        found = prepare("ours-fp32", batch=batch)
        assert found["ours-fp32"].ended.reason == "validate does not pass it: by far"
        assert found["eager"].ended is None
    assert len(child.validated) == 1


def test_an_export_that_broke_is_not_tried_again_for_those_that_share_it(prepare, child):
    child.breaks = "export"
    found = prepare(*OURS)
    assert [entry.ended and entry.ended.reason for entry in found.values()] == [None, None] + 3 * ["it broke"]
    assert child.exported == []
