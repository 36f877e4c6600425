"""Several artefacts of one model against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infsa_deploy.errors import UsageError
from infsa_deploy.graph.store import load_model, save_model
from infsa_deploy.validation.inputs import Plan
from infsa_deploy.validation.pairwise import compare_pairs
from tests.validation.test_against_reference import damage

PLAN = Plan(real=3, random=2)


@pytest.fixture
def artefacts(copied):
    paths = [
        copied("linear", "ops.onnx"),
        copied("linear", "reference.onnx", fold=False),
        copied("linear", "damaged.onnx"),
    ]
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


def test_artefacts_of_different_models(artefacts, tmp_path):
    model, metadata = load_model(artefacts[1])
    save_model(model, replace(metadata, image=replace(metadata.image, height=8)), tmp_path / "other.onnx")
    with pytest.raises(UsageError, match="takes other images"):
        compare_pairs([artefacts[0], tmp_path / "other.onnx"], PLAN, threads=1)
