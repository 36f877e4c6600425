"""The grid: who is in it, at which sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from infsa_models import zoo

from infsa_deploy.bench import contenders
from infsa_deploy.bench.plan import GivenFile, plan_files, plan_models
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import UsageError
from tests.engine_record import RECORD

ALWAYS = ["eager", "softmax"]
FILE = Path("m.onnx")
METADATA = replace(
    RECORD.metadata, image=replace(RECORD.metadata.image, height=16, width=16), source=ModelSource(weights="m.pt")
)


def names(chosen):
    return [contender.name for contender in chosen]


def test_the_reference_and_softmax_are_always_there():
    assert names(contenders.choose((), baselines=False, files=True)) == ALWAYS
    assert names(contenders.choose(("ours-fp32",), baselines=False, files=False)) == [*ALWAYS, "ours-fp32"]
    assert names(contenders.choose((), baselines=True, files=True)) == [*ALWAYS, "linformer", "performer"]
    default = names(contenders.choose((), baselines=False, files=False))
    assert default[:2] == ALWAYS
    assert {"compile", "ort-reference", "ours-fp32", "openvino-fp32", "openvino-bf16"} <= set(default)


def test_every_contender_has_a_name_of_its_own_and_a_file_where_it_needs_one():
    assert len(set(names(contenders.CONTENDERS))) == len(contenders.CONTENDERS)
    for contender in contenders.CONTENDERS:
        assert (contender.export is None) == (contender.runtime in ("eager", "compile"))


def test_unknown_contender():
    with pytest.raises(UsageError) as caught:
        contenders.choose(("our-fp32",), baselines=False, files=False)
    assert "ours-fp32" in caught.value.fix


def test_grid_of_models():
    chosen = contenders.choose((), baselines=False, files=True)
    cells = plan_models(["a", "b"], [], [1, 8], chosen, lambda source: (32, 64))
    assert [cell.key for cell in cells] == [(m, 32, 64, batch) for m in "ab" for batch in (1, 8)]
    assert cells[0].source == ModelSource(model="a", image_size=(32, 64))


def test_files_of_one_model_share_a_cell():
    metadata = METADATA
    other_size = replace(metadata, image=replace(metadata.image, height=32, width=32))
    any_size = replace(metadata, image=replace(metadata.image, multiple_of=8))
    files = [GivenFile(FILE, metadata, "f") for metadata in (metadata, other_size, any_size)]
    own = plan_files(files, [], [1], ())
    assert [(cell.height, len(cell.contenders)) for cell in own] == [(16, 2), (32, 2)]
    asked = plan_files(files, [(16, 16)], [1, 2], ())
    assert [(cell.batch, len(cell.contenders)) for cell in asked] == [(1, 3), (2, 3)]


def test_every_row_has_a_name_of_its_own():
    metadata = METADATA
    paths = ["a/m.onnx", "b/m.onnx", "b/n.onnx", "n.engine", "ours-fp32.onnx", "b/last.onnx"]
    (cell,) = plan_files([GivenFile(Path(path), metadata, path) for path in paths], [(16, 16)], [1], ())
    assert names(cell.contenders) == ["a/m.onnx", "b/m.onnx", "n.onnx", "n.engine", "ours-fp32.onnx", "last"]
    assert [contender.sha256 for contender in cell.contenders] == paths


def test_a_file_without_a_source():
    metadata = METADATA
    with pytest.raises(UsageError, match="reference"):
        plan_files([GivenFile(FILE, replace(metadata, source=ModelSource()), "f")], [], [1], ())


def test_names_of_sources():
    assert ModelSource(weights="/x/mine.pt", hops=3).name == "mine_hops3"
    assert ModelSource(module="pack.age:factory").name == "factory"
    assert ModelSource(image_size=(64, 64)).name == zoo.DEFAULT_MODEL["linear"]
    for variant, name in zoo.DEFAULT_MODEL.items():
        assert ModelSource(variant=variant).name == name
    assert ModelSource(model="infvit_linear_4l", power_iterations=2).name == "infvit_linear_4l_power2"
