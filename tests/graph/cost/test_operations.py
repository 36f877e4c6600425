"""FLOPs counted from the graph against the same sums done by hand."""

from __future__ import annotations

import pytest

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.cost.operations import count_flops

# tiny: 16x24 image in patches of 8: 6 patches + class token; E 24, 3 heads of 8, MLP 40, 2 layers, 5 classes
N, E, H, D, M, L, K = 7, 24, 3, 8, 40, 2, 5
CONV = 2 * 6 * E * 3 * 8 * 8
MLP = (L - 1) * 2 * 2 * N * E * M + 2 * 2 * E * M  # in the last layer the class token alone goes through it
HEAD = 2 * E * K


def test_linear(tiny, export):
    _, model = export(tiny("linear"))
    flops = count_flops(model, {"batch": 1})
    per_head = 3 * 2 * H * E * D + 2 * H * D  # pooled tokens through Wq, Wk, Wv, and bk
    query_and_out = 2 * N * E * E + 2 * E * E
    assert flops["MatMul"] == L * (query_and_out + per_head) + MLP
    assert flops["EnergyPool"] == L * (2 * N * E + 2 * N * H * E)
    assert flops["CentralityPool"] == L * 4 * N * H * E
    assert flops["Conv"] == CONV
    assert flops["Gemm"] == HEAD


def test_pure(tiny, export):
    _, model = export(tiny("pure", hops=3))
    flops = count_flops(model, {"batch": 1})
    assert flops["MatMul"] == L * 2 * N * E * 3 * E + (L - 1) * 2 * N * E * E + 2 * E * E + MLP
    assert (
        flops["NeumannAttention"] == L * 2 * (1 + 3) * N * N * E - 2 * (N - 1) * N * E
    )  # the last product: 1 row of N
    assert count_flops(model, {"batch": 4})["MatMul"] == 4 * flops["MatMul"]


def test_a_free_axis_must_be_stated(tiny, export):
    _, model = export(tiny("pure"))
    with pytest.raises(ModelError, match="batch"):
        count_flops(model, {})
