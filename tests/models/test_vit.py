"""The ViT against torchvision's formulas, and its position table at other image sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from infsa_models.checkpoint import load_vit, weights_hash
from infsa_models.vit import ViT, ViTConfig, resize_positions
from torch import nn

from infsa_deploy.errors import UsageError


@pytest.mark.parametrize("variant", ["pure", "linear"])
def test_matches_the_converted_torchvision_network(variant, golden):
    model = load_vit(golden / f"torchvision_vit_{variant}_infsa.safetensors").double()
    data = np.load(golden / f"torchvision_vit_{variant}_infsa.npz")
    with torch.no_grad():
        logits = model(torch.from_numpy(data["x"]).double()).numpy()
    assert np.abs(logits - data["y"]).max() <= 1e-10 * np.abs(data["y"]).max()


def test_softmax_network_matches_torch_encoder_layers(tiny_config):
    config = replace(tiny_config, variant="softmax")
    model = ViT(config).double().eval()
    x = torch.randn(3, 3, 8, 12, dtype=torch.float64)
    with torch.no_grad():
        patches = x.reshape(3, 3, 2, 4, 3, 4).permute(0, 2, 4, 1, 3, 5).reshape(3, 6, 48)
        tokens = patches @ model.patch_embed.weight.reshape(16, 48).T + model.patch_embed.bias
        expected = torch.cat([model.class_token.expand(3, 1, 16), tokens], dim=1) + model.position_embedding
        for block in model.blocks:
            expected = torch_encoder_layer(block, config)(expected)
        expected = model.head(model.norm(expected)[:, 0])
        torch.testing.assert_close(model(x), expected, rtol=1e-11, atol=1e-12)


def torch_encoder_layer(block: nn.Module, config: ViTConfig) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        config.embed_dim,
        config.num_heads,
        config.mlp_dim,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    projections = [getattr(block.attention, f"{name}_proj") for name in "qkv"]
    renamed = {
        "self_attn.in_proj_weight": torch.cat([projection.weight for projection in projections]),
        "self_attn.in_proj_bias": torch.cat([projection.bias for projection in projections]),
    }
    parts = {
        "self_attn.out_proj": block.attention.out_proj,
        "linear1": block.mlp.expand,
        "linear2": block.mlp.contract,
        "norm1": block.norm1,
        "norm2": block.norm2,
    }
    for name, part in parts.items():
        renamed |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    layer.load_state_dict(renamed)
    return layer.train()  # the fast path of eval mode is another implementation


def bicubic_matrix(size_in: int, size_out: int) -> np.ndarray:
    """Weights [out, in] of 1-D bicubic interpolation: a = -0.75, half-pixel centres, edges repeated."""

    def kernel(distance: float) -> float:
        a, d = -0.75, abs(distance)
        if d <= 1:
            return (a + 2) * d**3 - (a + 3) * d**2 + 1
        return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0

    weights = np.zeros((size_out, size_in))
    for out in range(size_out):
        centre = (out + 0.5) * size_in / size_out - 0.5
        for tap in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
            weights[out, min(max(tap, 0), size_in - 1)] += kernel(centre - tap)
    return weights


@pytest.mark.parametrize(("from_grid", "to_grid"), [((2, 3), (4, 6)), ((8, 8), (5, 11)), ((4, 4), (1, 7))])
def test_positions_are_interpolated_bicubically(from_grid, to_grid):
    table = torch.randn(1, 1 + from_grid[0] * from_grid[1], 5, dtype=torch.float64)
    resized = resize_positions(table, from_grid, to_grid)
    assert torch.equal(resized[:, 0], table[:, 0])
    image = table[0, 1:].reshape(*from_grid, 5).numpy()
    expected = np.einsum(
        "Rr,Cc,rce->RCe",
        bicubic_matrix(from_grid[0], to_grid[0]),
        bicubic_matrix(from_grid[1], to_grid[1]),
        image,
    )
    np.testing.assert_allclose(resized[0, 1:].reshape(*to_grid, 5).numpy(), expected, rtol=0, atol=1e-12)


def test_positions_of_the_same_grid_are_kept_exactly():
    table = torch.randn(1, 7, 4)
    assert torch.equal(resize_positions(table, (2, 3), (2, 3)), table)
    # The same number of patches in another arrangement is another grid.
    assert not torch.equal(resize_positions(table, (2, 3), (3, 2)), table)


def test_another_image_size_is_another_model(tiny_vit):
    before = weights_hash(tiny_vit)
    larger = tiny_vit.at_image_size((16, 20))
    assert larger.config == replace(tiny_vit.config, image_size=(16, 20))
    assert larger.position_embedding.shape == (1, 1 + 4 * 5, 16)
    assert not larger.training
    assert larger(torch.randn(2, 3, 16, 20)).shape == (2, 5)
    assert weights_hash(tiny_vit) == before
    assert torch.equal(larger.head.weight, tiny_vit.head.weight)
    with torch.no_grad():
        larger.head.weight.zero_()
    assert weights_hash(tiny_vit) == before


def test_images_of_another_shape_are_refused(tiny_vit):
    with pytest.raises(UsageError, match=r"takes images \[batch, 3, 8, 12\], not \[2, 3, 12, 8\]"):
        tiny_vit(torch.randn(2, 3, 12, 8))
    with pytest.raises(UsageError, match="takes images"):
        tiny_vit(torch.randn(2, 1, 8, 12))
    with pytest.raises(UsageError, match="takes images"):
        tiny_vit(torch.randn(3, 8, 12))


@pytest.mark.parametrize("variant", ["pure", "linear", "softmax"])
def test_one_patch_is_enough(variant, tiny_config):
    model = ViT(replace(tiny_config, variant=variant, image_size=(4, 4)))
    assert torch.isfinite(model(torch.randn(1, 3, 4, 4))).all()


@pytest.mark.parametrize(
    ("variant", "changes"),
    [("pure", {"hops": 3}), ("pure", {}), ("linear", {"power_iterations": 2}), ("softmax", {})],
)
def test_traces_with_any_batch(variant, changes, tiny_config):
    model = ViT(replace(tiny_config, variant=variant, **changes)).eval()
    images = torch.randn(5, 3, 8, 12)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (images[:2],), dynamic_shapes=({0: batch},))
    if variant != "softmax":
        assert any(name.endswith("rho_logit") for name in program.state_dict)
    torch.testing.assert_close(program.module()(images), model(images))


@pytest.mark.parametrize(
    ("image_size", "nearest"),
    [
        ((9, 12), "8x12 or 12x12"),
        ((3, 12), "4x12"),
        ((0, 12), "4x12"),
        ((13, 15), "12x12 or 16x16"),
    ],
)
def test_image_sizes_that_do_not_fit_name_the_nearest_that_do(image_size, nearest, tiny_vit):
    with pytest.raises(UsageError, match="does not fit") as caught:
        tiny_vit.at_image_size(image_size)
    assert nearest in caught.value.fix


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "cubic"}, "unknown variant 'cubic'"),
        ({"num_heads": 3}, "16 cannot be split into 3 heads"),
        ({"hops": 0}, "hops 0"),
        ({"power_iterations": 0}, "0 power iterations"),
        ({"depth": 0}, "depth 0"),
        ({"patch_size": 0}, "patch_size 0"),
        ({"variant": "softmax", "hops": 2}, "softmax has no hops"),
    ],
)
def test_impossible_configurations(change, message, tiny_config):
    with pytest.raises(UsageError, match=message):
        replace(tiny_config, **change)
