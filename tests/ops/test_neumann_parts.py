"""The parts of NeumannAttention's ONNX body, each by itself: whole numbers, so that every sum is exact in any order."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.ops import neumann_attention as parts
from tests.ops.single_node import run_part

B, H, N, D = 2, 3, 11, 4
RHO, EPS = np.array(0.75, np.float32), np.array(1e-6, np.float32)
ROUNDINGS = 8  # of scale, its product with u and, a hop, the sum with v: in units of the largest number


def integers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def sizes(*values: int) -> list[np.ndarray]:
    """Each a tensor [1], as the parts take sizes."""
    return [np.array([value]) for value in values]


def by_head() -> list[np.ndarray]:
    """q (already over D), k and v."""
    return [integers(seed, B, H, N, D) for seed in range(3)]


def affinity(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.maximum(q @ np.swapaxes(k, -1, -2), 0)


def series(hops: int, rows: int) -> np.ndarray:
    q, k, v = (array.astype(np.float64) for array in by_head())
    S = affinity(q, k)
    step = float(RHO) * S / (np.sqrt((S**2).sum((2, 3), keepdims=True)) + float(EPS))
    return sum(np.linalg.matrix_power(step, t) @ v for t in range(1, hops + 1))[:, :, :rows]


def assert_rounded(found: np.ndarray, exact: np.ndarray) -> None:
    assert found.shape == exact.shape
    bound = ROUNDINGS * np.finfo(np.float32).eps * np.abs(exact).max()
    np.testing.assert_allclose(found, exact, rtol=0, atol=bound)


def test_heads_are_split_and_queries_divided():
    qkv = integers(0, B, N, 3 * H * D)
    q, k, v = run_part(parts.SplitHeads, [qkv, *sizes(H)])
    expected = qkv.reshape(B, N, 3, H, D).transpose(2, 0, 3, 1, 4)
    for found, exact in zip((q, k, v), (expected[0] / D, expected[1], expected[2]), strict=True):
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize(("hops", "rows"), [(1, 0), (1, 5), (3, 0), (3, 1), (2, N)])
def test_whole(hops, rows):
    (y,) = run_part(parts.Whole, [*by_head(), *sizes(rows), RHO, np.array(hops), EPS])
    assert_rounded(y, series(hops, rows or N))


@pytest.mark.parametrize(
    ("start", "count", "elements", "least", "tiles"),
    [
        (0, N, N * N, 1, (1, N)),  # all in one
        (0, N, 4 * N, 1, (3, 4)),  # 4 rows a tile; one of the last is padding
        (0, N, 5 * N + 10, 1, (3, 4)),  # 5 would fit, but 3 tiles of 4 are more even
        (0, 5, 3 * N, 1, (2, 3)),  # 6 rows taken, so that 5 are left: the end is cut off
        (5, N - 5, 2 * N, 1, (3, 2)),  # the other rows
        (0, N, 1, 6, (2, 6)),  # no row fits, but a tile has the least
        (N, 1, 3 * N, 1, (1, 1)),  # none are left: one of zeros
    ],
)
def test_tiles_are_cut(start, count, elements, least, tiles):
    q = integers(0, B * H, N, D)
    (found,) = run_part(parts.CutTiles, [q, *sizes(start, count, elements, least)])
    assert found.shape == (B * H, *tiles, D)
    rows = found.reshape(B * H, -1, D)
    expected = np.zeros_like(rows)
    expected[:, : min(N - start, rows.shape[1])] = q[:, start : start + rows.shape[1]]
    np.testing.assert_array_equal(rows, expected)


def test_the_tiles_of_a_head():
    q, k, v = (array[0, 0] for array in by_head())
    padded = np.concatenate([q, np.zeros((1, D), np.float32)]).reshape(3, 4, D)
    u, squares = run_part(parts.TiledHead, [padded, k.T.copy(), v])
    S = affinity(q, k)
    np.testing.assert_array_equal(u.reshape(-1, D)[:N], S @ v)
    assert not u.reshape(-1, D)[N:].any()
    assert squares == (S**2).sum()


def test_the_tail_of_a_head():
    q, k, _ = (array[0, 0] for array in by_head())
    (squares,) = run_part(parts.TailHead, [q[3:].reshape(2, 4, D), k.T.copy()])
    assert squares == (affinity(q, k)[3:] ** 2).sum() > 0


@pytest.mark.parametrize("rows", [1, 5, N])
@pytest.mark.parametrize(("elements", "least"), [(3 * N, 1), (1, 4), (N * N, 1)], ids=["3 rows", "least", "one tile"])
def test_tiled(rows, elements, least):
    (y,) = run_part(parts.Tiled, [*by_head(), *sizes(rows), RHO, EPS, *sizes(elements, least)])
    assert_rounded(y, series(1, rows))
