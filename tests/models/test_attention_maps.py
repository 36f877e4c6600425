"""The maps against their definitions, written out with the N x N matrix in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from infsa_models.attention import EPS, InfSAAttention, SoftmaxAttention, pure_centrality
from infsa_models.attention_maps import WithAttentionMaps
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.errors import ModelError

ROUNDING = 1e-12  # float64: about 1e4 roundings
B, H, N, E = 2, 3, 7, 24
D = E // H


def attention(variant: str, **depth) -> nn.Module:
    torch.manual_seed(5)
    if variant == "softmax":
        return SoftmaxAttention(E, H).double().eval()
    return InfSAAttention(E, H, variant, **depth).double().eval()


def queries_and_keys(module: nn.Module, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    def by_head(projected: torch.Tensor) -> np.ndarray:
        return projected.detach().numpy().reshape(B, N, H, D).transpose(0, 2, 1, 3)

    return by_head(module.q_proj(x)), by_head(module.k_proj(x))


def affinity(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    scores = np.maximum(q @ k.transpose(0, 1, 3, 2) / D, 0)
    return scores / (np.sqrt((scores**2).sum((2, 3), keepdims=True)) + EPS)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(B, N, E, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("hops", [1, 2, 5])
@torch.no_grad()
def test_pure_is_the_column_sums_of_the_series(hops, x):
    module = attention("pure", hops=hops)
    step = float(torch.sigmoid(module.rho_logit)) * affinity(*queries_and_keys(module, x))
    series = sum(np.linalg.matrix_power(step, t) for t in range(1, hops + 1))
    sums = series.sum(axis=2)
    expected = sums / (sums.sum(axis=2, keepdims=True) + EPS)
    np.testing.assert_allclose(module.attention_map(x), expected, rtol=ROUNDING, atol=ROUNDING)


@torch.no_grad()
def test_pure_with_all_hops_solves_the_resolvent(x):
    module = attention("pure", hops="inf")
    step = float(torch.sigmoid(module.rho_logit)) * affinity(*queries_and_keys(module, x))
    sums = (np.linalg.inv(np.eye(N) - step) - np.eye(N)).sum(axis=2)
    expected = sums / (sums.sum(axis=2, keepdims=True) + EPS)
    np.testing.assert_allclose(module.attention_map(x), expected, rtol=1e-11, atol=ROUNDING)


def test_pure_of_a_known_graph():
    # Token 1 answers every query, token 0 half as strongly and only its own: column sums 1/2 and 2, of 5/2.
    q = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[0.5, 0.0], [1.0, 1.0]]]], dtype=torch.float64)
    np.testing.assert_allclose(pure_centrality(q, k, rho=0.9, eps=0.0), [[[0.2, 0.8]]], rtol=ROUNDING)


@torch.no_grad()
def test_linear_is_what_the_values_are_pooled_by(x):
    module = attention("linear", power_iterations=2)
    weights = module.attention_map(x)
    value = module.v_proj(x).reshape(B, N, H, D).transpose(1, 2)
    pooled = torch.sigmoid(module.rho_logit) * (weights.unsqueeze(-2) @ value)  # B H 1 D
    expected = module.out_proj(pooled.transpose(1, 2).reshape(B, 1, E)).expand_as(x)
    np.testing.assert_allclose(module(x), expected, rtol=ROUNDING, atol=ROUNDING)


@torch.no_grad()
def test_softmax_is_the_class_tokens_row(x):
    module = attention("softmax")
    q, k = queries_and_keys(module, x)
    powers = np.exp(q @ k.transpose(0, 1, 3, 2) / D**0.5)
    expected = (powers / powers.sum(axis=3, keepdims=True))[:, :, 0]
    np.testing.assert_allclose(module.attention_map(x), expected, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
@torch.no_grad()
def test_a_model_with_maps(variant, tiny_config):
    model = ViT(type(tiny_config)(**{**vars(tiny_config), "variant": variant})).eval()
    image = torch.randn(3, 3, 8, 12)
    logits, maps = WithAttentionMaps(model, model.config.grid)(image)
    torch.testing.assert_close(logits, model(image), rtol=0, atol=0)
    assert maps.shape == (3, 2, 2, 2, 3)  # B L H h w
    first = model.blocks[0]
    patches = model.patch_embed(image).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.class_token.expand(3, -1, -1), patches], dim=1) + model.position_embedding
    whole = first.attention.attention_map(first.norm1(tokens))
    torch.testing.assert_close(maps[:, 0], whole[..., 1:].reshape(3, 2, 2, 3), rtol=0, atol=0)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_without_attention_there_is_no_map():
    with pytest.raises(ModelError, match="no attention whose map is known"):
        WithAttentionMaps(nn.Linear(3, 3), (1, 1))
