"""Checkpoints and the zoo from the command line: what `export` takes, says, and records for `validate`."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import infsa_deploy.export as export_module
from infsa_deploy.errors import ModelError
from infsa_deploy.records.codec import from_json
from infsa_deploy.records.export import ExportReport

TOLD = ("--variant", "linear", "--heads", "3", "--grid", "2x3")


def test_bare_export_then_validate(run):
    code, out, _ = run("export")
    assert (code, out) == (0, "artifacts/digits_linear.onnx\n")
    code, _, err = run("validate", "artifacts/digits_linear.onnx", "--images", "2", "--random", "1")
    assert code == 0, err


def test_one_of_several_sets_and_its_rebuilding(run, tiny, tmp_path):
    state = tiny("linear").module.state_dict()
    averaged = {f"module.{key}": (tensor * 1.01).half() for key, tensor in state.items()}
    torch.save({"model": state, "model_ema": averaged}, tmp_path / "best.ckpt")
    code, out, err = run("export", "--weights", "best.ckpt", *TOLD)
    assert (code, out) == (2, "")
    assert "model (42 tensors), model_ema (42 tensors)" in err
    code, out, err = run("export", "--weights", "best.ckpt", *TOLD, "--key", "model_ema", "--json")
    assert code == 0, err
    exported = from_json(ExportReport, out).path
    assert exported == "artifacts/best_model_ema.onnx"
    assert "42 in float16: taken to float32" in err
    assert from_json(ExportReport, out).metadata.source.key == "model_ema"
    assert run("validate", exported, "--images", "2", "--random", "1")[0] == 0
    (tmp_path / "best.ckpt").rename(tmp_path / "moved.ckpt")
    assert run("validate", exported, "--images", "2", "--random", "1", "--weights", "moved.ckpt")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--key", "ema"), "--key cannot go with a model of the zoo"),
        (("--model", "digits_linear", "--key", "ema"), "--key cannot go with a model of the zoo"),
        (("--module", "package:factory", "--key", "ema"), "--key cannot go with --module"),
    ],
)
def test_a_key_of_no_checkpoint(run, arguments, message):
    code, _, err = run("export", *arguments)
    assert code == 2
    assert message in err


def test_weights_that_are_no_numbers_by_every_way(run, tiny, tmp_path, monkeypatch):
    module = tiny("linear").module
    with torch.no_grad():
        module.blocks[1].attention.rho_logit.fill_(float("nan"))
    config = {"config": json.dumps(module.config.to_dict())}
    safetensors.torch.save_file(module.state_dict(), tmp_path / "nan.safetensors", config)
    code, _, err = run("export", "--weights", "nan.safetensors", "-o", "m.onnx")
    assert code == 4
    assert "blocks.1.attention.rho_logit (1 of 1 elements)" in err
    monkeypatch.setattr("infsa_models.zoo.load_into", lambda model, *_, **__: model.head.bias.data.fill_(float("inf")))
    code, _, err = run("export", "-o", "m.onnx")
    assert code == 4
    assert "head.bias (10 of 10 elements)" in err
    with pytest.raises(ModelError, match="no numbers"):
        export_module(module, (torch.zeros(1, 3, 16, 24),), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
