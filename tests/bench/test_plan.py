"""The grid: who is in it, at which sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from infsa_models import zoo

from infsa_deploy.bench import contenders
from infsa_deploy.bench.plan import GivenFile, plan_files, plan_models, source_name, sweep
from infsa_deploy.bench.sessions import OPENERS
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import UsageError
from infsa_deploy.export.store import load_model

ALWAYS = ["eager", "softmax"]


def names(chosen):
    return [contender.name for contender in chosen]


def test_the_reference_and_softmax_are_always_there():
    assert names(contenders.choose((), baselines=False, files=True)) == ALWAYS
    assert names(contenders.choose(("ours-fp32",), baselines=False, files=False)) == [*ALWAYS, "ours-fp32"]
    assert names(contenders.choose((), baselines=True, files=True)) == [*ALWAYS, "linformer", "performer"]
    default = names(contenders.choose((), baselines=False, files=False))
    assert default[:2] == ALWAYS
    assert {"compile", "ort-reference", "ours-fp32", "openvino-fp32", "openvino-bf16"} <= set(default)


def test_every_contender_can_be_opened_and_has_a_name_of_its_own():
    assert {contender.runtime for contender in contenders.CONTENDERS} <= set(OPENERS)
    assert len(set(names(contenders.CONTENDERS))) == len(contenders.CONTENDERS)
    for contender in contenders.CONTENDERS:
        assert (contender.export is None) == (contender.runtime in ("eager", "compile"))


def test_unknown_contender():
    with pytest.raises(UsageError) as caught:
        contenders.choose(("our-fp32",), baselines=False, files=False)
    assert "ours-fp32" in caught.value.fix


def test_sweep():
    assert sweep("224:1024") == ((224, 224), (384, 384), (512, 512), (1024, 1024))
    assert sweep("512") == ((512, 512),)
    for wrong in ("225:300", "1024:224", "x", ":"):
        with pytest.raises(UsageError):
            sweep(wrong)


def test_grid_of_models():
    chosen = contenders.choose((), baselines=False, files=True)
    cells = plan_models(["a", "b"], [], [1, 8], chosen, lambda source: (32, 64))
    assert [cell.key for cell in cells] == [(m, 32, 64, batch) for m in "ab" for batch in (1, 8)]
    assert cells[0].source == ModelSource(model="a", image_size=(32, 64))


def test_files_of_one_model_share_a_cell(artefact):
    _, metadata = load_model(artefact)
    other_size = replace(metadata, image=replace(metadata.image, height=32, width=32))
    any_size = replace(metadata, image=replace(metadata.image, multiple_of=8))
    files = [GivenFile(artefact, metadata, "f") for metadata in (metadata, other_size, any_size)]
    own = plan_files(files, [], [1], ())
    assert [(cell.height, len(cell.contenders)) for cell in own] == [(16, 2), (32, 2)]
    asked = plan_files(files, [(16, 16)], [1, 2], ())
    assert [(cell.batch, len(cell.contenders)) for cell in asked] == [(1, 3), (2, 3)]


def test_every_row_has_a_name_of_its_own(artefact):
    _, metadata = load_model(artefact)
    paths = ["a/m.onnx", "b/m.onnx", "b/n.onnx", "n.engine", "ours-fp32.onnx", "b/last.onnx"]
    (cell,) = plan_files([GivenFile(Path(path), metadata, path) for path in paths], [(16, 16)], [1], ())
    assert names(cell.contenders) == ["a/m.onnx", "b/m.onnx", "n.onnx", "n.engine", "ours-fp32.onnx", "last"]
    assert [contender.sha256 for contender in cell.contenders] == paths


def test_a_file_without_a_source(artefact):
    _, metadata = load_model(artefact)
    with pytest.raises(UsageError, match="reference"):
        plan_files([GivenFile(artefact, replace(metadata, source=ModelSource()), "f")], [], [1], ())


def test_names_of_sources():
    assert source_name(ModelSource(weights="/x/mine.pt", hops=3)) == "mine_hops3"
    assert source_name(ModelSource(module="pack.age:factory")) == "factory"
    assert source_name(ModelSource(image_size=(64, 64))) == zoo.DEFAULT_MODEL["linear"]
    for variant, name in zoo.DEFAULT_MODEL.items():
        assert source_name(ModelSource(variant=variant)) == name
    assert source_name(ModelSource(model="infvit_linear_4l", power_iterations=2)) == "infvit_linear_4l_power2"
