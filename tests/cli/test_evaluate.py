"""`evaluate` and `explain` as typed; without torch where the model is a file."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from infsa_models.vit import ViT
from PIL import Image

from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.evaluate.results import EvaluationReport
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import Reference, load_reference
from infsa_deploy.records.codec import from_json
from tests.cli.test_cli import paths

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "onnx_ir", "onnxscript", "safetensors"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def folder(tmp_path, rng):
    """Ten pictures in two class folders, with a box on each."""
    (tmp_path / "boxes").mkdir()
    for index in range(10):
        path = tmp_path / "data" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 24, 3), np.uint8)).save(path)
        box = "<xmin>1</xmin><ymin>1</ymin><xmax>8</xmax><ymax>8</ymax>"
        annotation = f"<annotation><object><bndbox>{box}</bndbox></object></annotation>"
        (tmp_path / "boxes" / f"{index}.xml").write_text(annotation)
    return tmp_path / "data"


def write(reference: Reference, path, **config):
    export_reference(reference, path, ExportConfig(**config))
    return path


def test_several_models_side_by_side(run, folder, tiny, tmp_path):
    models = [write(tiny(variant), tmp_path / f"{variant}.onnx", attention_maps=True) for variant in ("linear", "pure")]
    command = ("evaluate", *models, "--data", folder, "--boxes", "boxes", "--attention", "--threads", "1", "-o", "out")
    code, out, err = run(*command, "--json")
    report = from_json(EvaluationReport, out)
    assert (code, err) == (0, "")
    assert [result.variant for result in report.models] == ["linear", "pure"]
    assert report.images == 10
    assert report.comparisons[0].images == 10
    for result in report.models:
        assert 0 <= result.accuracy.top1.mean <= 1
        assert sum(map(sum, result.accuracy.confusion)) == 10
        assert result.accuracy.per_class["c"] is None
        assert result.attention.roc_auc.images == 10
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"0_linear.jsonl", "1_pure.jsonl", "report.json", "reliability.png", "removal.png"}
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == json.loads(out)
    code, out, _ = run(*command)
    assert code == 0
    assert "MoRF-AOC, blur" in out
    assert "McNemar" in out


def test_a_bad_image_among_good_ones(run, folder, tiny, tmp_path):
    model = write(tiny("linear"), tmp_path / "m.onnx")
    (folder / "a" / "4.png").write_bytes((folder / "a" / "4.png").read_bytes()[:60])
    code, out, err = run("evaluate", model, "--data", folder, "--threads", "1", "--json")
    report = from_json(EvaluationReport, out)
    assert code == 4
    assert report.models[0].images == 9
    assert [problem.image for problem in report.problems] == ["a/4.png"]
    assert "a/4.png" in err
    assert "1 of 10 images were left out" in err


def test_what_is_refused(run, folder, tiny, tmp_path):
    model = write(tiny("linear"), tmp_path / "m.onnx")
    for arguments, code, message in (
        (("evaluate", model, "--data", "nowhere"), 2, "no such folder"),
        (("evaluate", model, "--data", "zoo"), 2, "digits"),
        (("evaluate", model, "--data", folder, "--attention"), 4, "--attention-maps"),
        (("evaluate", model, "--data", folder, "--layer", "first"), 2, "layer 'first'"),
        (("evaluate", "missing.onnx", "--data", folder), 4, "does not exist"),
        (("evaluate", "missing.bin", "--data", folder), 4, "does not exist"),
        (("evaluate", "digits_lineal", "--data", folder), 2, "digits_linear"),
        (("explain", model, folder / "a" / "0.png"), 4, "--attention-maps"),
    ):
        ended, out, err = run(*arguments)
        assert (ended, out) == (code, ""), err
        assert message in err
    (folder / "a").rename(folder / "z")
    ended, _, err = run("evaluate", model, "--data", folder)
    assert ended == 2
    assert "no class of the model: z" in err


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_the_zoo_eager_and_exported_agree(run, variant, tmp_path):
    reference = load_reference(ModelSource(model=f"digits_{variant}"))
    assert isinstance(reference.module, ViT)
    model = write(reference, tmp_path / "m.onnx", attention_maps=True)
    options = ("--data", "zoo", "--images", "64", "--attention", "--removal-images", "2", "--threads", "1", "--json")
    code, out, _ = run("evaluate", f"digits_{variant}", model, *options)
    report = from_json(EvaluationReport, out)
    assert code == 0
    eager, exported = report.models
    assert (eager.runtime, exported.runtime) == ("eager", "onnxruntime")
    assert report.comparisons[0].same_answer == 1.0
    assert eager.accuracy.top1.mean > 0.9
    for name in ("roc_auc", "pr_auc"):
        means = [getattr(result.attention, name).mean for result in report.models]
        assert means[0] == pytest.approx(means[1], abs=1e-3)
    for curves in zip(eager.attention.faithfulness, exported.attention.faithfulness, strict=True):
        assert curves[0].morf == pytest.approx(curves[1].morf, abs=1e-3)


def test_explain(run, folder, tiny, tmp_path):
    model = write(tiny("pure"), tmp_path / "m.onnx", attention_maps=True)
    code, out, _ = run("explain", model, folder / "a" / "0.png", folder / "b" / "1.png", "-o", "maps", "--json")
    assert code == 0
    assert [(item["figure"], item["maps"]) for item in json.loads(out)] == [
        ("maps/0.png", "maps/0.npy"),
        ("maps/1.png", "maps/1.npy"),
    ]
    assert np.load(tmp_path / "maps" / "0.npy").shape == (2, 3, 2, 3)
    code, out, _ = run("explain", model, folder / "a" / "0.png", "-o", "maps", "--layer", "0")
    assert out.endswith("-> maps/0.png\n")


def test_no_torch_is_needed(folder, tiny, tmp_path):
    model = write(tiny("linear"), tmp_path / "m.onnx", attention_maps=True)
    script = WITHOUT_TORCH + "from infsa_deploy.cli import main\nmain(sys.argv[1:])"
    evaluate = ["evaluate", str(model), "--data", str(folder), "--boxes", str(tmp_path / "boxes"), "--attention"]
    for arguments in (evaluate, ["explain", str(model), str(folder / "a" / "0.png"), "-o", str(tmp_path / "maps")]):
        ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=paths())
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("package", "command", "extra"), [("sklearn", "evaluate", "evaluate"), ("matplotlib", "explain", "plot")]
)
def test_a_missing_package_says_what_to_install(package, command, extra, folder, tiny, tmp_path):
    model = write(tiny("linear"), tmp_path / "m.onnx", attention_maps=True)
    script = f"import sys\nsys.modules[{package!r}] = None\nfrom infsa_deploy.cli import main\nmain(sys.argv[1:])"
    given = {"evaluate": ["--data", str(folder), "--boxes", str(tmp_path / "boxes"), "--attention"]}
    arguments = [command, str(model), *given.get(command, [str(folder / "a" / "0.png"), "-o", str(tmp_path / "x")])]
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=paths())
    assert ended.returncode == 3, ended.stderr
    assert f"pip install 'infsa-deploy[{extra}]'" in ended.stderr
