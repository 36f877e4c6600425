"""What `export` says of attention that it did not put on the custom ops."""

from __future__ import annotations

import json

import torch
from torch import nn

from tests.models_in_the_wild.attentions import Gated
from tests.models_in_the_wild.models import Block, Functional, Model, TwoInputs


def gated() -> nn.Module:
    return Model(Block(), Block(Gated()))


def functional() -> nn.Module:
    return Functional()


def two_inputs() -> nn.Module:
    module = TwoInputs()
    module.example_input_array = (torch.zeros(1, 3, 16, 16), torch.ones(1, 16))
    return module


def export(run, tmp_path, factory, *options):
    path = tmp_path / "m.onnx"
    return run("export", "--module", f"{__name__}:{factory}", "--image-size", "16", "-o", str(path), *options)


def test_an_attention_that_is_kept(run, tmp_path):
    code, _, err = export(run, tmp_path, "gated")
    assert code == 0
    (line,) = [line for line in err.splitlines() if "blocks.1.attn" in line]
    assert "traced as it is, without custom ops" in line
    code, _, err = export(run, tmp_path, "gated", "--require-ops")
    assert (code, "--require-ops" in err) == (4, True)


def test_no_infsa_module(run, tmp_path):
    code, out, err = export(run, tmp_path, "functional", "--json")
    assert (code, json.loads(out)["metadata"]["variant"]) == (0, "none")
    assert "no module with InfSA attention was found" in err
    code, out, err = export(run, tmp_path, "functional", "--json", "--variant", "softmax")
    assert (code, json.loads(out)["metadata"]["variant"]) == (0, "softmax")


def test_two_inputs_from_the_command_line(run, tmp_path):
    code, out, _ = export(run, tmp_path, "two_inputs", "--json")
    assert (code, json.loads(out)["rewritten"]) == (0, ["blocks.0.attn"])
