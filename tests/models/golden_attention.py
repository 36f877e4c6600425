"""The cases of attention whose outputs the authors' package computed, and their inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

INDEX = json.loads((Path(__file__).parent.parent / "golden" / "index.json").read_text())["cases"]
NEGATIVE = {"name": "all_scores_negative", "shape": [1, 2, 9, 16], "seed": INDEX[0]["seed"] + 100}
CASES = [*INDEX, {**NEGATIVE, "scale": 1.0, "shift": 0.0, "rho": 0.95}]


def golden_inputs(case: dict) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [B, H, N, D] in float64."""
    generator = np.random.default_rng(case["seed"])
    q, k, v = (generator.standard_normal(case["shape"]) * case["scale"] + case["shift"] for _ in range(3))
    if case["name"] == "all_scores_negative":
        q, k = np.abs(q), -np.abs(k)
    return torch.from_numpy(q), torch.from_numpy(k), torch.from_numpy(v)
