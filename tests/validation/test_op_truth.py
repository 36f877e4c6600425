"""The formulas that the ops are held to are the authors', and their deviations are neither too small nor too large."""

from __future__ import annotations

import json

import numpy as np
import pytest

from infsa_deploy.validation import op_truth
from infsa_deploy.validation.tolerance import ROUNDOFF, check_each, check_operands, operand_error

RUNS = 8


def test_attention_is_the_authors(golden):
    arrays = np.load(golden / "attention.npz")
    cases = json.loads((golden / "index.json").read_text())["cases"]
    for case in cases:
        random = np.random.default_rng(case["seed"])
        q, k, v = (random.standard_normal(case["shape"]) * case["scale"] + case["shift"] for _ in range(3))
        B, H, N, D = case["shape"]
        qkv = np.stack([q, k, v]).transpose(1, 3, 0, 2, 4).reshape(B, N, 3 * H * D)
        (found,) = op_truth.neumann_attention(qkv, heads=H, rho=case["rho"], hops=1, eps=1e-6)
        expected = arrays[f"{case['name']}/pure_infsa"].transpose(0, 2, 1, 3).reshape(B, N, H * D)
        np.testing.assert_allclose(found.value, expected, rtol=1e-11, atol=1e-14, err_msg=case["name"])


def test_hops_are_the_sum_of_powers(rng):
    qkv = rng.standard_normal((1, 9, 24))
    q, k, v = qkv[0, :, :8], qkv[0, :, 8:16], qkv[0, :, 16:]
    scores = np.maximum(q @ k.T / 8, 0)
    step = 0.9 * scores / (np.linalg.norm(scores) + 1e-6)
    (found,) = op_truth.neumann_attention(qkv, heads=1, rho=0.9, hops=3, eps=1e-6, rows=4)
    np.testing.assert_allclose(found.value[0], (step @ v + step @ step @ v + step @ step @ step @ v)[:4], rtol=1e-12)


@pytest.mark.parametrize("tokens", [1, 40, 700])
def test_float32_arithmetic_errs_by_what_is_said(tokens):
    """Random inputs in NumPy's own order of summation: within the bound, by a deviation that is met, not dwarfed."""
    ratios = []
    for seed in range(RUNS):
        qkv = np.random.default_rng(seed).standard_normal((1, tokens, 24)).astype(np.float32)
        (truth,) = op_truth.truth_of(
            "NeumannAttention", [qkv], {"heads": 1, "rho": 0.9, "hops": 1, "eps": 1e-6}, "fp32"
        )
        found = attention(qkv)
        if truth.value.any():
            check_each("y", found[None], truth, "fp32")
            ratios.append(np.sqrt(np.mean((found - truth.value[0]) ** 2) / np.mean(truth.deviation**2)))
    assert 0.1 < np.median(ratios) < 1.2


def attention(qkv: np.ndarray, total=lambda squares: squares.sum(1).sum(), value: float = 1.0) -> np.ndarray:
    """One head in float32."""
    q, k, v = np.split(qkv[0], 3, axis=-1)
    scores = np.maximum((q / np.float32(q.shape[-1])) @ k.T, 0)
    scale = np.float32(0.9) / (np.sqrt(total(scores * scores)) + np.float32(1e-6))
    return scale * (scores @ (v * np.float32(value)))


@pytest.mark.parametrize(("fault", "passes"), [({}, True), ({"value": 1 + 2.0**-21}, False)])
def test_four_units_in_the_last_place_of_the_values_are_caught(fault, passes):
    attributes, runs = {"heads": 1, "rho": 0.9, "hops": 1, "eps": 1e-6}, []
    for seed in range(RUNS):
        qkv = np.random.default_rng(seed).standard_normal((1, 100, 24)).astype(np.float32)
        (truth,) = op_truth.truth_of("NeumannAttention", [qkv], attributes, "fp32")
        (direction,) = op_truth.directions("NeumannAttention", [qkv], attributes, 2, "fp32")
        np.testing.assert_allclose(
            direction, truth.value, rtol=1e-9, atol=1e-11
        )  # the values are a factor of the outputs
        runs.append((attention(qkv, **fault)[None], truth, direction))
    assert operand_error(runs, "fp32").passed is passes


def test_a_norm_that_is_summed_in_one_chain_is_caught():
    """4 million squares of about the same size, the last of them rounded to a 4-millionth of the sum."""
    runs = []
    for seed in range(2):
        qkv = np.random.default_rng(seed).standard_normal((1, 2050, 24)).astype(np.float32)
        attributes = {"heads": 1, "rho": 0.9, "hops": 1, "eps": 1e-6}
        (truth,) = op_truth.truth_of("NeumannAttention", [qkv], attributes, "fp32")
        found = attention(qkv, total=lambda squares: np.cumsum(squares, dtype=np.float32)[-1])
        runs.append((found[None], truth, truth.value))
    assert abs(operand_error(runs, "fp32").error) > 8 * ROUNDOFF["fp32"]
    with pytest.raises(AssertionError, match="as if an operand were off"):
        check_operands("y", runs, "fp32")


def test_a_query_is_no_factor_of_attention(rng):
    """It is normalised away, so that an error of it is none."""
    attributes = {"heads": 1, "rho": 0.9, "hops": 1, "eps": 0.0}
    (direction,) = op_truth.directions("NeumannAttention", [rng.standard_normal((1, 20, 24))], attributes, 0, "fp32")
    assert np.abs(direction).max() < 1e-9
