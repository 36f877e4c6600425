"""The first layer at which two files of one model part."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from infsa_models.checkpoint import save_vit

from infsa_deploy.cli import main
from infsa_deploy.config import ModelSource
from infsa_deploy.divergence import find_divergence
from infsa_deploy.errors import UsageError
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from infsa_deploy.export.store import load_model, save_model
from infsa_deploy.records import ValidationSet, from_json
from infsa_deploy.validate import Plan, validate_model

PLAN = Plan(real=2, random=2)


@pytest.fixture
def pair(tiny, tmp_path):
    """A model and its copy whose `weight` is scaled: pair("blocks.0.norm1.weight", 2.0)."""
    weights = tmp_path / "m.safetensors"
    save_vit(tiny("linear").module, weights)

    def run(weight: str, factor: float):
        base, damaged = tmp_path / "base.onnx", tmp_path / "damaged.onnx"
        export_reference(load_reference(ModelSource(weights=str(weights))), base)
        model, metadata = load_model(base)
        value = model.graph.initializers[weight]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(factor), name=weight)
        save_model(model, metadata, damaged)
        return base, damaged

    return run


@pytest.mark.parametrize("factor", [2.0, float("nan")])
def test_the_damaged_layer_is_named(pair, factor):
    base, damaged = pair("blocks.0.norm1.weight", factor)
    found = find_divergence(base, validate_model(damaged, PLAN, threads=1), PLAN)
    assert found.first.op == "LayerNormalization"
    model, _ = load_model(damaged)
    assert found.first.node in [use.node.name for use in model.graph.initializers["blocks.0.norm1.weight"].uses()]
    assert found.layers > 20


def test_equal_models_do_not_part(pair):
    base, same = pair("blocks.0.norm1.weight", 1.0)
    found = find_divergence(base, validate_model(same, PLAN, threads=1), PLAN)
    assert found.first is None
    assert found.worst.relative == 0.0


def test_engines_cannot_be_looked_into(pair, tmp_path):
    _, same = pair("blocks.0.norm1.weight", 1.0)
    report = validate_model(same, PLAN, threads=1)
    with pytest.raises(UsageError, match="is an engine"):
        find_divergence(tmp_path / "m.engine", report, PLAN)


def test_as_typed(pair, capsys):
    base, damaged = map(str, pair("blocks.0.norm1.weight", 2.0))
    options = ["--images", "2", "--random", "0", "--threads", "1", "--find-divergence"]
    for typed, code in (([base, damaged], 6), ([base], 2)):
        with pytest.raises(SystemExit) as ended:
            main(["validate", *typed, *options])
        assert ended.value.code == code
    assert "first to leave the bound: LayerNormalization" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["validate", base, damaged, *options, "--json"])
    assert from_json(ValidationSet, capsys.readouterr().out).divergence.first.op == "LayerNormalization"
