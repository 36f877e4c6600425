"""NeumannAttention through the plugin: C++ host code and kernel, against the formula in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.plugins import cases
from tests.plugins import worker as w

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16

# The host code with every value of H (1, 3, 16), D (24, 64, 128), batch (1, 3), hops (1, 2, 3) and type, and N of one
# block of queries, two and three; all pairs of type with N, D and hops, and of batch with H. Numbers over many blocks
# are the subject of test_kernels.py. The last number is `rows`: within the first block of queries, beyond it, and all,
# for one hop and more.
MATRIX = [
    (FP32, 1, 1, 1, 24, 1, 0),
    (FP16, 3, 1, 3, 64, 2, 0),
    (BF16, 1, 1, 16, 128, 3, 0),
    (FP32, 3, 17, 16, 128, 2, 0),
    (FP16, 1, 17, 1, 24, 3, 0),
    (BF16, 3, 17, 3, 64, 1, 0),
    (FP32, 1, 130, 2, 64, 3, 0),
    (FP16, 3, 130, 1, 128, 1, 0),
    (BF16, 1, 130, 3, 24, 2, 0),
    (FP32, 1, 300, 1, 24, 1, 0),
    (FP16, 1, 300, 1, 64, 3, 0),
    (BF16, 1, 300, 1, 128, 2, 0),
    (FP16, 2, 130, 3, 24, 1, 0),
    (FP32, 1, 65, 1, 128, 1, 1),
    (FP16, 1, 300, 1, 64, 1, 130),
    (BF16, 1, 17, 3, 24, 1, 17),
    (FP32, 2, 130, 1, 64, 2, 1),
    (FP16, 1, 150, 2, 24, 3, 140),
    (BF16, 1, 130, 1, 24, 4, 2),
]


@pytest.mark.parametrize(("dtype", "B", "N", "H", "D", "hops", "rows"), MATRIX, ids=str)
def test_shapes(worker, dtype: torch.dtype, B: int, N: int, H: int, D: int, hops: int, rows: int) -> None:
    case = cases.neumann(dtype, B, N, H, D, hops, rows, seed=1)
    outcome = worker(w.enqueue, case)
    assert outcome.code == 0, outcome.messages
    assert [name for name, _ in outcome.launches].count("hop") == hops - 1
    cases.check(case, outcome.outputs)


@pytest.mark.parametrize("hops", [2, 3])
def test_the_last_hop_launches_only_the_blocks_it_needs(worker, hops: int) -> None:
    """129 tokens are two blocks of queries."""
    launches = worker(w.enqueue, cases.neumann(FP16, 1, 129, 1, 64, hops, rows=1)).launches
    assert [blocks for name, blocks in launches if name == "hop"] == [2] * (hops - 2) + [1]


@pytest.mark.parametrize("hops", [1, 2])
def test_first_rows_of_changing_shapes(worker, hops: int) -> None:
    """The workspace for the most tokens serves fewer; with fewer tokens than rows there is an error."""
    runs = [cases.neumann(FP16, B, N, 1, 40, hops, rows=9) for B, N in ((2, 130), (1, 17), (2, 9))]
    runs.append(w.Case(runs[0].op, runs[0].fields, [cases.normal(1, 8, 120).half()], [(1, 9, 40)]))
    *outcomes, refused = worker(w.reshape, runs)
    for case, outcome in zip(runs, outcomes, strict=False):
        assert outcome.code == 0, outcome.messages
        cases.check(case, outcome.outputs)
    assert refused.code != 0
    assert "rows = 9, but qkv has 8 tokens" in refused.messages


def test_float32_sums_over_at_most_8192_keys(worker) -> None:
    """The others are rounded to fewer digits than one sum over all keys has."""
    spans = [(0, 8192), (8192, 16384), (16384, 20000)]
    launches = worker(w.spans_of_keys, cases.neumann(FP32, 1, 20000, 1, 8, hops=2, rows=3))
    assert launches == [(name, *span) for name in ("attend", "hop") for span in spans]
    launches = worker(w.spans_of_keys, cases.neumann(BF16, 1, 20000, 1, 8, rows=3))
    assert launches == [("attend_cut", 0, 20000)]


def _golden_case(golden, name: str, dtype: torch.dtype) -> w.Case:
    described = {case["name"]: case for case in json.loads((golden / "index.json").read_text())["cases"]}
    case = described[name]
    random = np.random.default_rng(case["seed"])
    q, k, v = (random.standard_normal(case["shape"]) * case["scale"] + case["shift"] for _ in range(3))
    B, H, N, D = case["shape"]
    qkv = torch.from_numpy(np.stack([q, k, v])).permute(1, 3, 0, 2, 4).reshape(B, N, 3 * H * D).to(dtype)
    fields = {"heads": H, "rho": case["rho"], "hops": 1, "eps": cases.EPS}
    return w.Case("NeumannAttention", fields, [qkv], [(B, N, H * D)])


GOLDEN = ["one_token", "tiny", "odd_head_dim", "wide_head", "large_values", "small_values", "shifted"]
RANGES = GOLDEN[-3:]  # values for which a narrow type differs in kind; shapes do the same in each type


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, FP32) for name in GOLDEN), *((name, FP16) for name in RANGES)], ids=str
)
def test_authors_outputs(worker, golden, name: str, dtype: torch.dtype) -> None:
    """The authors' inputs; tests/validation holds the truth that outputs are compared with to the authors' outputs."""
    case = _golden_case(golden, name, dtype)
    outcome = worker(w.enqueue, case)
    assert outcome.code == 0, outcome.messages
    cases.check(case, outcome.outputs)


def test_no_positive_score_is_zero_not_nan(worker) -> None:
    """||S|| is 0 and eps alone keeps the quotient finite."""
    qkv = torch.cat([torch.ones(1, 40, 16), -torch.ones(1, 40, 16), torch.ones(1, 40, 16)], -1)
    case = w.Case("NeumannAttention", {"heads": 1, "rho": 0.9, "hops": 2, "eps": cases.EPS}, [qkv], [(1, 40, 16)])
    assert worker(w.enqueue, case).outputs[0].eq(0).all()
