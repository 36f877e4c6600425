"""Keys of other libraries: each way they spell a ViT, held against their models where these are installed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from infsa_models.checkpoint import load_into, load_vit, weights_hash
from infsa_models.namings import HUGGING_FACE, HUGGING_FACE_5, NAMINGS, TIMM, TORCHVISION, in_our_names, naming_of
from infsa_models.vit import ViT
from torch import nn

from infsa_deploy.errors import ModelError, UsageError

CONFIG = {"model_type": "vit", "num_attention_heads": 2, "num_hidden_layers": 2, "image_size": [8, 12]}
CONFIG |= {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
TOLD = {"variant": "pure", "num_heads": 2, "grid": (2, 3)}


def save(folder, state, **config):
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder


@pytest.mark.parametrize("naming", NAMINGS)
def test_names_map_both_ways(naming, tiny_vit):
    theirs = {naming.theirs(key): tensor for key, tensor in tiny_vit.state_dict().items()}
    assert naming_of(theirs) is naming
    assert in_our_names(theirs).keys() == tiny_vit.state_dict().keys()


# As the libraries name them: InfSA has taken the place of the attention.
SPELLINGS = {
    "torchvision": (TORCHVISION, "encoder.layers.encoder_layer_1.self_attention.rho_logit"),
    "timm": (TIMM, "blocks.1.attn.rho_logit"),
    "transformers 4": (HUGGING_FACE, "vit.encoder.layer.1.attention.attention.rho_logit"),
    "transformers 4, wrapped": (HUGGING_FACE, "vit.encoder.layer.1.attention.attention.infsa_attn.rho_logit"),
    "transformers 5, saved": (HUGGING_FACE, "vit.encoder.layer.1.attention.rho_logit"),
    "transformers 5": (HUGGING_FACE_5, "vit.layers.1.attention.rho_logit"),
}


@pytest.mark.parametrize("library", SPELLINGS)
def test_infsa_within(library):
    naming, key = SPELLINGS[library]
    assert naming.ours(key) == "blocks.1.attention.rho_logit"


def test_two_projections_in_a_row_become_one(tiny_config, tmp_path):
    model = ViT(tiny_config).eval().double()
    state = {HUGGING_FACE.theirs(key): tensor.float() for key, tensor in model.state_dict().items()}
    for i, block in enumerate(model.blocks):
        after = nn.Linear(16, 16, dtype=torch.float64)
        block.attention.out_proj = nn.Sequential(block.attention.out_proj, after)
        state |= {f"vit.encoder.layer.{i}.attention.output.dense.{k}": p for k, p in after.state_dict().items()}
    image = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    loaded = load_vit(save(tmp_path, state, layer_norm_eps=1e-6), variant="pure").double()
    torch.testing.assert_close(loaded(image), model(image), rtol=1e-6, atol=1e-6)  # the weights are rounded to float32


@pytest.mark.parametrize("naming", [HUGGING_FACE, HUGGING_FACE_5])
def test_config_json_says_what_tensors_cannot(naming, tiny_config, tmp_path):
    model = ViT(replace(tiny_config, norm_eps=1e-12))
    state = {naming.theirs(key): tensor for key, tensor in model.state_dict().items()}
    folder = save(tmp_path, state)
    loaded = load_vit(folder, variant="pure")
    assert loaded.config == model.config
    assert weights_hash(loaded) == weights_hash(model)
    assert {norm.eps for norm in loaded.modules() if isinstance(norm, nn.LayerNorm)} == {1e-12}
    with pytest.raises(UsageError, match="norm_eps 1e-06 contradicts"):
        load_into(ViT(tiny_config), folder)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json beside it"):
        load_vit(folder, **TOLD)


def test_another_activation_is_another_network(tiny_vit, tmp_path):
    state = {HUGGING_FACE.theirs(key): tensor for key, tensor in tiny_vit.state_dict().items()}
    with pytest.raises(ModelError, match="of another network") as caught:
        load_vit(save(tmp_path, state, hidden_act="quick_gelu"), variant="pure")
    assert "quick_gelu" in caught.value.why


def test_keys_that_are_missing_are_named_as_the_library_does(tiny_vit, tmp_path):
    state = {TIMM.theirs(key): tensor for key, tensor in tiny_vit.state_dict().items()}
    del state["blocks.1.mlp.fc1.bias"]
    torch.save(state, tmp_path / "m.pth")
    with pytest.raises(ModelError) as caught:
        load_vit(tmp_path / "m.pth", **TOLD)
    assert caught.value.why == "missing: blocks.1.mlp.fc1.bias"


def test_packed_weights_of_timm_are_a_softmax_vit(tiny_config, tmp_path):
    model = ViT(replace(tiny_config, variant="softmax"))
    state = {TIMM.theirs(key): tensor for key, tensor in model.state_dict().items()}
    for i in range(2):
        for kind in ("weight", "bias"):
            parts = [state.pop(f"blocks.{i}.attn.{name}_proj.{kind}") for name in "qkv"]
            state[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(parts)
    assert "blocks.0.attn.proj.weight" in state
    torch.save({"arch": "vit", "state_dict": state}, tmp_path / "m.pth.tar")
    assert weights_hash(load_vit(tmp_path / "m.pth.tar", num_heads=2, grid=(2, 3))) == weights_hash(model)


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "4KB"}])
def test_what_transformers_saves_computes_the_same(shards, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"image_size": 8, "patch_size": 4, "num_labels": 5, "initializer_range": 0.5}
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)).eval()
    theirs.save_pretrained(tmp_path, **shards)
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(shards)
    image = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = copy.deepcopy(theirs).double()(image).logits
        torch.testing.assert_close(load_vit(tmp_path).double()(image), expected, rtol=1e-12, atol=1e-12)
