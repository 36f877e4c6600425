"""fp16 where fp16 sums are silently zero: pure attention at N = 4096, the pools of linear attention at N = 331 776.

The inputs are exact in fp16, the reference is float64. A sum of n float32 terms is off by at most n 2^-24 times the
sum of their magnitudes; each rounding to fp16 by 2^-11 of the number, or 2^-25 below the normal range.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from infsa_models.attention import pure_attention
from torch import nn

from infsa_deploy.export.trace import trace
from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.graph.passes.clean import fold_constants
from infsa_deploy.graph.precision.retype import retype
from tests.graph.onnx_graphs import nodes, normals, parse, run

LARGEST = 65504.0
FP16, FP32 = 2.0**-11, 2.0**-24
TOKENS, HEADS, E = 331_776, 2, 8


def fp16_numbers(seed: int, *shape: int, scale: float, shift: float = 0.0) -> np.ndarray:
    return (normals(seed, *shape, scale=scale) + np.float32(shift)).astype(np.float16).astype(np.float32)


def low_model(text: str) -> ir.Model:
    model = attach_ops(parse(text))
    retype(model, "fp16")
    assert all(value.dtype == ir.DataType.FLOAT16 for node in model.graph for value in node.outputs if node.domain)
    return model


def assert_weighted_mean(got: dict[str, np.ndarray], weights: np.ndarray, x: np.ndarray) -> None:
    """pooled and mass against float64, weights [N, H] and x [N, E], the sum of weights beyond fp16."""
    total = weights.sum(0)  # H
    assert (total > LARGEST).all()
    expected = weights.T @ x / total[:, None]  # H E
    magnitude = weights.T @ np.abs(x) / total[:, None]
    bound = FP16 * np.abs(expected) + 2 * TOKENS * FP32 * magnitude
    assert (bound < 0.1 * np.abs(expected)).all()  # so that a result of zero cannot pass
    assert (np.abs(got["p"][0] - expected) <= bound).all()
    np.testing.assert_allclose(got["m"], 1, rtol=FP16)


def test_energy_pool_at_331776_tokens():
    model = low_model(
        f"g (float[1,{TOKENS},16] q, float[1,{TOKENS},{E}] x) => (float[1,{HEADS},{E}] p, float[1,{HEADS}] m) "
        f"{{ p, m = infsa.EnergyPool<heads = {HEADS}, eps = 1e-6>(q, x) }}"
    )
    q, x = fp16_numbers(0, 1, TOKENS, 16, scale=2), fp16_numbers(1, 1, TOKENS, E, scale=0.5, shift=1)
    energies = np.linalg.norm(q[0].astype(np.float64).reshape(TOKENS, HEADS, 8), axis=-1) / 8**0.5
    assert_weighted_mean(run(model, {"q": q, "x": x}), energies, x[0].astype(np.float64))


def test_centrality_pool_at_331776_tokens():
    model = low_model(
        f"g (float[1,{TOKENS},{E}] x, float[1,{HEADS},{E}] u, float[1,{HEADS}] c) => "
        f"(float[1,{HEADS},{E}] p, float[1,{HEADS}] m) {{ p, m = infsa.CentralityPool<eps = 1e-6>(x, u, c) }}"
    )
    x = fp16_numbers(1, 1, TOKENS, E, scale=0.5, shift=1)
    u, c = fp16_numbers(2, 1, HEADS, E, scale=1), np.ones((1, HEADS), np.float32)
    scores = np.maximum(x[0].astype(np.float64) @ u[0].T.astype(np.float64) + 1, 0)
    assert_weighted_mean(run(model, {"x": x, "u": u, "c": c}), scores, x[0].astype(np.float64))


N, D, RHO = 4096, 16, 0.75


def pure_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(fp16_numbers(seed, N, D, scale=2, shift=seed / 4) for seed in range(3))


def assert_pure(got: np.ndarray, expected: np.ndarray | None, roundings: int) -> None:
    """[N, D] against `expected`, else float64; `roundings`: how often an affinity is rounded to fp16 on the way."""
    q, k, v = (array.astype(np.float64) for array in pure_inputs())
    S = np.maximum(q @ k.T / D, 0)
    assert (S**2).sum() > LARGEST
    A = RHO * S / np.linalg.norm(S)
    expected, magnitude = (A @ v if expected is None else expected), A @ np.abs(v)
    bound = (roundings * FP16 + 2 * N * FP32) * magnitude + roundings * FP16 / 2**14 * np.abs(v).sum(0)
    bound += 2 * FP16 * np.abs(expected)
    assert np.linalg.norm(bound) < 0.1 * np.linalg.norm(expected)
    assert (np.abs(got - expected) <= bound).all()


def test_neumann_attention_at_4096_tokens():
    model = low_model(
        f"g (float[1,{N},{3 * D}] qkv) => (float[1,{N},{D}] y) "
        f"{{ y = infsa.NeumannAttention<heads = 1, rho = {RHO}, hops = 1, eps = 1e-6>(qkv) }}"
    )
    qkv = np.concatenate(pure_inputs(), axis=1)[None]
    assert_pure(run(model, {"qkv": qkv})["y"][0], None, roundings=0)


class Pure(nn.Module):
    """The formula as PyTorch writes it."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return pure_attention(q, k, v, RHO, 1)


def test_the_formula_written_out_at_4096_tokens():
    inputs = [array[None, None] for array in pure_inputs()]
    model = fold_constants(trace(Pure(), tuple(map(torch.from_numpy, inputs)), static_batch=1))
    feeds = dict(zip("qkv", inputs, strict=True))
    # Not float64: ONNX Runtime adds the N x N squares of one ReduceL2 in one chain, which loses 0.5 % in float32 too.
    expected = run(model, feeds)["logits"][0, 0]
    retype(model, "fp16")
    assert nodes(model, "ReduceL2")[0].outputs[0].dtype == ir.DataType.FLOAT
    # q kᵀ, its quotient by D, the normalised affinity and its product with rho; S itself counts twice, in A and ‖S‖.
    assert_pure(run(model, feeds)["logits"][0, 0], expected, roundings=6)
