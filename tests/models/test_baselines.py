"""Linformer and Performer against softmax attention where they must agree, and on what they may cost."""

from __future__ import annotations

import pytest
import torch
from infsa_models.attention import SoftmaxAttention, softmax_attention
from infsa_models.baselines import (
    LinformerAttention,
    PerformerAttention,
    build,
    orthogonal_directions,
    performer_attention,
)
from infsa_models.vit import ViTConfig
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infsa_deploy.errors import UsageError

B, H, N, D = 2, 3, 11, 8
E = H * D


def test_linformer_of_full_rank_and_identity_mixing_is_softmax_attention():
    torch.manual_seed(0)
    linformer = LinformerAttention(E, H, tokens=N, rank=N).double()
    softmax = SoftmaxAttention(E, H).double()
    softmax.load_state_dict({key: value for key, value in linformer.state_dict().items() if "mix" not in key})
    with torch.no_grad():
        linformer.key_mix.copy_(torch.eye(N))
        linformer.value_mix.copy_(torch.eye(N))
        x = torch.randn(B, N, E, dtype=torch.float64)
        torch.testing.assert_close(linformer(x), softmax(x))


def test_linformer_mixes_keys_and_values_along_tokens():
    torch.manual_seed(0)
    linformer = LinformerAttention(E, H, tokens=N, rank=4).double()
    x = torch.randn(1, N, E, dtype=torch.float64)
    with torch.no_grad():
        q, k, v = linformer.q_proj(x)[0], linformer.k_proj(x)[0], linformer.v_proj(x)[0]
        heads = []
        for h in range(H):
            part = slice(h * D, (h + 1) * D)
            scores = q[:, part] @ (linformer.key_mix @ k[:, part]).T / D**0.5
            heads.append(torch.softmax(scores, dim=-1) @ (linformer.value_mix @ v[:, part]))
        torch.testing.assert_close(linformer(x)[0], linformer.out_proj(torch.cat(heads, dim=-1)))


def test_performer_estimates_softmax_attention():
    """The estimator's error falls as 1/sqrt(features): 64 times as many must have less than half of it."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, H, N, D, dtype=torch.float64) / 2
    exact = softmax_attention(q, k, v)

    def error(features: int) -> float:
        directions = orthogonal_directions(features, D).double()
        return float((performer_attention(q, k, v, directions) - exact).norm() / exact.norm())

    assert error(64 * 64) < error(64) / 2


def test_performer_is_a_weighted_mean_of_the_values():
    torch.manual_seed(0)
    q, k = torch.randn(2, B, H, N, D, dtype=torch.float64) * 5
    ones = torch.ones(B, H, N, D, dtype=torch.float64)
    found = performer_attention(q, k, ones, orthogonal_directions(64, D).double(), eps=0.0)
    torch.testing.assert_close(found, ones)


def test_directions_are_orthogonal_within_a_block():
    torch.manual_seed(0)
    directions = orthogonal_directions(2 * D + 3, D).double()
    assert directions.shape == (2 * D + 3, D)
    gram = directions[:D] @ directions[:D].T
    off_diagonal = gram - torch.diag(torch.diagonal(gram))
    assert off_diagonal.abs().max() < 1e-5 * gram.diagonal().max()  # float32 rounding of the factorisation


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that is made."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.seen += [tuple(t.shape) for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        return made


@pytest.mark.parametrize("name", ["linformer", "performer"])
def test_models_run_and_hold_no_square_matrix(name):
    config = ViTConfig("softmax", (64, 64), 4, 3, embed_dim=24, depth=2, num_heads=3, mlp_dim=40, num_classes=5)
    model = build(name, config).eval()
    shapes = Shapes()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), shapes:
        assert model(torch.randn(2, 3, 64, 64)).shape == (2, 5)
    N = config.tokens
    assert any(N in shape for shape in shapes.seen)
    assert not [shape for shape in shapes.seen if shape[-2:] == (N, N)]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), shapes:
        softmax_attention(*torch.randn(3, 1, 1, N, 8, dtype=torch.float64))
    assert [shape for shape in shapes.seen if shape[-2:] == (N, N)]  # what is looked for would be seen


def test_gradients_reach_every_parameter():
    for attention in (LinformerAttention(E, H, tokens=N, rank=4), PerformerAttention(E, H)):
        attention(torch.randn(B, N, E)).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for n, p in attention.named_parameters())


def test_unknown_baseline():
    with pytest.raises(UsageError, match="linformer"):
        build("reformer", ViTConfig("softmax", (8, 8), 4, 3, 8, 1, 1, 8, 2))
