"""Several artefacts of one model against each other."""

from __future__ import annotations

import pytest

from infsa_deploy.config import ExportConfig
from infsa_deploy.errors import UsageError
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.pairwise import compare_pairs
from infsa_deploy.validation_inputs import Plan
from tests.test_validate import damage

PLAN = Plan(real=3, random=2)


@pytest.fixture
def artefacts(tiny, tmp_path):
    paths = [tmp_path / "ops.onnx", tmp_path / "reference.onnx", tmp_path / "damaged.onnx"]
    for path in paths:
        export_reference(tiny("linear"), path, ExportConfig(fold="reference" not in path.name))
    damage(paths[2], 0.5)
    return paths


def test_each_two_are_compared(artefacts):
    pairs = compare_pairs(artefacts, PLAN, threads=1)
    names = [(pair.first.split("/")[-1], pair.second.split("/")[-1]) for pair in pairs]
    assert names == [
        ("ops.onnx", "reference.onnx"),
        ("ops.onnx", "damaged.onnx"),
        ("reference.onnx", "damaged.onnx"),
    ]
    same, damaged, _ = pairs
    assert same.images == 5
    assert same.top1_agreement == 1.0
    assert damaged.max_abs > 1e4 * same.max_abs


def test_artefacts_of_different_models(artefacts, tiny, tmp_path):
    export_reference(tiny("linear", image_size=(16, 16)), tmp_path / "other.onnx")
    with pytest.raises(UsageError, match="takes other images"):
        compare_pairs([artefacts[0], tmp_path / "other.onnx"], PLAN, threads=1)
