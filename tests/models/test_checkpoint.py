"""Checkpoints: what is understood, what is inferred, and each way a file can be wrong."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from infsa_models import layout
from infsa_models.checkpoint import (
    check_finite,
    load_into,
    load_state,
    load_vit,
    load_weights,
    save_vit,
    weights_hash,
)
from infsa_models.namings import TORCHVISION
from infsa_models.vit import ViT

from infsa_deploy.errors import ModelError, UsageError


def write(path, state, metadata=None):
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in state.items()}, path, metadata)
    return path


def torchvision_state(model):
    return {TORCHVISION.theirs(key): tensor for key, tensor in model.state_dict().items()}


@pytest.mark.parametrize("changes", [{}, {"hops": "inf"}, {"variant": "linear", "power_iterations": 3}])
def test_saved_models_come_back(changes, tiny_config, tmp_path):
    model = ViT(replace(tiny_config, **changes))
    save_vit(model, tmp_path / "model.safetensors", {"note": "hello"})
    loaded = load_vit(tmp_path / "model.safetensors")
    assert loaded.config == model.config
    assert weights_hash(loaded) == weights_hash(model)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert load_weights(tmp_path / "model.safetensors")[1]["note"] == "hello"
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_half_precision_files_load_in_float32(tiny_vit, tmp_path):
    save_vit(tiny_vit.half(), tmp_path / "model.safetensors")
    lines: list[str] = []
    loaded = load_vit(tmp_path / "model.safetensors", note=lines.append)
    assert lines == ["of 42 weight tensors 42 in float16: taken to float32"]
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert torch.equal(loaded.head.weight, tiny_vit.head.weight.float())


def test_a_converted_torchvision_file_tells_its_architecture(golden):
    config = load_vit(golden / "torchvision_vit_linear_infsa.safetensors").config
    assert config.variant == "linear"
    assert (config.image_size, config.patch_size, config.in_channels) == ((64, 64), 8, 3)
    assert (config.embed_dim, config.depth, config.num_heads, config.mlp_dim) == (128, 3, 4, 256)
    assert config.num_classes == 10


@pytest.mark.parametrize("spelling", ["mlp.0 mlp.3", "mlp.linear_1 mlp.linear_2"])
def test_plain_torchvision_keys_are_a_softmax_vit(spelling, tiny_config, tmp_path):
    model = ViT(replace(tiny_config, variant="softmax"))
    state = torchvision_state(model)
    for i in range(2):
        prefix = f"encoder.layers.encoder_layer_{i}."
        for kind in ("weight", "bias"):
            parts = [state.pop(f"{prefix}self_attention.{name}_proj.{kind}") for name in "qkv"]
            state[f"{prefix}self_attention.in_proj_{kind}"] = torch.cat(parts)
            for new, old in zip(spelling.split(), ("mlp.0", "mlp.3"), strict=True):
                state[f"{prefix}{new}.{kind}"] = state.pop(f"{prefix}{old}.{kind}")
    path = write(tmp_path / "model.safetensors", state)
    loaded = load_vit(path, num_heads=2, grid=(2, 3))
    assert loaded.config == model.config
    assert weights_hash(loaded) == weights_hash(model)
    save_vit(loaded, tmp_path / "again.safetensors")
    assert weights_hash(load_vit(tmp_path / "again.safetensors")) == weights_hash(model)


def test_our_file_without_metadata_is_told_by_arguments(tiny_vit, tmp_path):
    path = write(tmp_path / "model.safetensors", tiny_vit.state_dict())
    with pytest.raises(UsageError, match="which attention") as caught:
        load_vit(path, num_heads=2, grid=(2, 3))
    assert "state the variant" in caught.value.fix
    with pytest.raises(UsageError, match="how many attention heads"):
        load_vit(path, variant="pure", grid=(2, 3))
    with pytest.raises(UsageError, match="6 patches, which are not a grid of 2x2"):
        load_vit(path, variant="pure", num_heads=2)
    loaded = load_vit(path, variant="pure", num_heads=2, grid=(2, 3), hops=2)
    assert loaded.config == replace(tiny_vit.config, hops=2)


@pytest.mark.parametrize(("embed_dim", "heads"), [(192, 3), (384, 6)])
def test_usual_widths_have_their_usual_heads(embed_dim, heads, tiny_config, tmp_path):
    config = replace(tiny_config, embed_dim=embed_dim, num_heads=heads, image_size=(8, 8))
    path = write(tmp_path / "model.safetensors", ViT(config).state_dict())
    assert load_vit(path, variant="pure").config == config


def test_another_image_size_interpolates_the_trained_positions(tiny_vit, tmp_path):
    save_vit(tiny_vit, tmp_path / "model.safetensors")
    loaded = load_vit(tmp_path / "model.safetensors", image_size=(12, 8))
    assert loaded.config == replace(tiny_vit.config, image_size=(12, 8))
    assert torch.equal(loaded.position_embedding, tiny_vit.at_image_size((12, 8)).position_embedding)


@pytest.mark.parametrize(("argument", "value"), [("variant", "linear"), ("num_heads", 4)])
def test_arguments_that_contradict_the_file(argument, value, tiny_vit, tmp_path):
    save_vit(tiny_vit, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=f"{argument} {value} contradicts the checkpoint"):
        load_vit(tmp_path / "model.safetensors", **{argument: value})
    other = ViT(replace(tiny_vit.config, **{argument: value}))
    before = weights_hash(other)
    with pytest.raises(UsageError, match="contradicts"):
        load_into(other, tmp_path / "model.safetensors")
    assert weights_hash(other) == before


@pytest.mark.parametrize("hops", [0, -2])
def test_impossible_hops_are_not_taken_for_unset(hops, tiny_vit, tmp_path):
    save_vit(tiny_vit, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=f"hops {hops}"):
        load_vit(tmp_path / "model.safetensors", hops=hops)


def test_every_wrong_key_is_named(tiny_vit, tmp_path):
    state = tiny_vit.state_dict()
    del state["class_token"]
    state["blocks.1.attention.q_prj.weight"] = state.pop("blocks.1.attention.q_proj.weight")
    state["head.weight"] = torch.zeros(5, 15)
    state["norm.bias"] = torch.zeros(16, dtype=torch.int64)
    state["ema_decay"] = torch.zeros(1)
    path = write(tmp_path / "model.safetensors", state, {"config": json.dumps(tiny_vit.config.to_dict())})
    for load in (lambda: load_vit(path), lambda: load_into(tiny_vit, path)):
        before = weights_hash(tiny_vit)
        with pytest.raises(ModelError, match="fit") as caught:
            load()
        assert [line.strip() for line in caught.value.why.splitlines()] == [
            "missing: blocks.1.attention.q_proj.weight (the file has blocks.1.attention.q_prj.weight?)",
            "missing: class_token",
            "extra: blocks.1.attention.q_prj.weight (did it mean blocks.1.attention.q_proj.weight?)",
            "extra: ema_decay",
            "misshapen: head.weight is [5, 15] of float32, expected [5, 16] of floats",
            "misshapen: norm.bias is [16] of int64, expected [16] of floats",
        ]
        assert weights_hash(tiny_vit) == before


def test_wrong_keys_are_named_as_the_file_spells_them(tiny_vit, tmp_path):
    state = torchvision_state(tiny_vit)
    state["encoder.layers.encoder_layer_1.ln1.weight"] = state.pop("encoder.layers.encoder_layer_1.ln_1.weight")
    del state["conv_proj.weight"]
    path = write(tmp_path / "model.safetensors", state)
    with pytest.raises(ModelError) as caught:
        load_vit(path, variant="pure", num_heads=2, grid=(2, 3))
    assert [line.strip() for line in caught.value.why.splitlines()] == [
        "missing: encoder.layers.encoder_layer_1.ln_1.weight (the file has encoder.layers.encoder_layer_1.ln1.weight?)",
        "missing: conv_proj.weight",
        "extra: encoder.layers.encoder_layer_1.ln1.weight (did it mean encoder.layers.encoder_layer_1.ln_1.weight?)",
    ]


def test_a_layer_that_the_file_records_but_lacks_is_missed(tiny_vit, tmp_path):
    state = {key: value for key, value in tiny_vit.state_dict().items() if not key.startswith("blocks.1.")}
    path = write(tmp_path / "model.safetensors", state, {"config": json.dumps(tiny_vit.config.to_dict())})
    with pytest.raises(ModelError) as caught:
        load_vit(path)
    assert len(caught.value.why.splitlines()) == len(layout.BLOCK)


def test_softmax_weights_are_no_infsa_weights(tiny_config, tmp_path):
    path = write(tmp_path / "model.safetensors", ViT(replace(tiny_config, variant="softmax")).state_dict())
    with pytest.raises(ModelError, match="does not fit") as caught:
        load_vit(path, variant="linear", num_heads=2, grid=(2, 3))
    assert "missing: blocks.0.attention.rho_logit" in caught.value.why


def test_a_stray_layer_number_stays_one_line(tiny_vit, tmp_path):
    state = {**tiny_vit.state_dict(), "blocks.999999999.norm1.weight": torch.zeros(16)}
    with pytest.raises(ModelError) as caught:
        load_vit(write(tmp_path / "model.safetensors", state), variant="pure", num_heads=2, grid=(2, 3))
    assert caught.value.why == "extra: blocks.999999999.norm1.weight"


@pytest.mark.parametrize(("key", "shape"), [("position_embedding", (1, 0, 16)), ("patch_embed.weight", (16, 3, 0, 0))])
def test_empty_tensors(key, shape, tiny_vit, tmp_path):
    path = write(tmp_path / "model.safetensors", {**tiny_vit.state_dict(), key: torch.zeros(shape)})
    with pytest.raises(ModelError, match="does not fit") as caught:
        load_vit(path, variant="pure", num_heads=2)
    assert "empty" in caught.value.why


def test_two_spellings_of_one_key(tiny_vit, tmp_path):
    state = torchvision_state(tiny_vit)
    twice = "encoder.layers.encoder_layer_0.mlp.linear_1.bias"
    path = write(tmp_path / "model.safetensors", {**state, twice: torch.zeros(24)})
    with pytest.raises(ModelError) as caught:
        load_vit(path, variant="pure", num_heads=2, grid=(2, 3))
    assert f"extra: {twice}" in caught.value.why


@pytest.mark.parametrize(
    ("state", "reason"),
    [({f"layer{i}": torch.zeros(2) for i in range(9)}, "its keys are layer0, layer1")],
)
def test_a_file_of_something_else(state, reason, tmp_path):
    with pytest.raises(ModelError, match="holds no ViT") as caught:
        load_vit(write(tmp_path / "model.safetensors", state))
    assert reason in caught.value.why


def test_unusable_metadata(tiny_vit, tmp_path):
    path = write(tmp_path / "model.safetensors", tiny_vit.state_dict(), {"num_heads": "many"})
    with pytest.raises(ModelError, match="unusable metadata") as caught:
        load_vit(path)
    assert caught.value.why == "num_heads is 'many'"


def test_load_state_copies_in_place(tiny_vit, tiny_config):
    other = ViT(tiny_config)
    load_state(other, tiny_vit.state_dict())
    assert weights_hash(other) == weights_hash(tiny_vit)


def test_writing_is_all_or_nothing(tiny_vit, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"the previous one")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_vit(tiny_vit, path)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert path.read_bytes() == b"the previous one"


def test_writing_into_no_folder(tiny_vit, tmp_path):
    with pytest.raises(UsageError, match="cannot write"):
        save_vit(tiny_vit, tmp_path / "nowhere" / "model.safetensors")
    assert not (tmp_path / "nowhere").exists()


def test_the_hash_covers_names_types_shapes_and_bytes(tiny_vit):
    def hashed(**state):
        holder = torch.nn.Module()
        for key, tensor in state.items():
            holder.register_buffer(key, tensor)
        return weights_hash(holder)

    base = torch.arange(6, dtype=torch.float32)
    variants = [
        hashed(a=base),
        hashed(b=base),
        hashed(a=base.view(2, 3)),
        hashed(a=base.view(torch.int32)),
        hashed(a=base.bfloat16()),
        hashed(a=-base),
        hashed(a=base, b=base),
    ]
    assert len(set(variants)) == len(variants)
    assert hashed(b=base, a=-base) == hashed(a=-base, b=base)
    strided = torch.stack([base, -base], dim=1)[:, 0]
    assert hashed(a=strided) == hashed(a=base)
    expected = hashlib.sha256(b"a torch.float32 [6]\n" + base.numpy().tobytes()).hexdigest()
    assert variants[0] == expected


def test_extra_state_is_no_tensor(tiny_vit):
    class Extra(torch.nn.Identity):
        def get_extra_state(self):
            return {"a": 1}

    expected = weights_hash(tiny_vit)
    tiny_vit.extra = Extra()
    assert weights_hash(tiny_vit) == expected
    check_finite(tiny_vit)


@pytest.mark.parametrize(
    ("value", "kind", "refused"),
    [
        (math.nan, torch.nn.Parameter, True),
        (math.inf, torch.nn.Parameter, True),
        (-math.inf, torch.nn.Parameter, True),
        (math.nan, torch.nn.Buffer, True),
        (-math.inf, torch.nn.Buffer, False),  # a mask
        (3e38, torch.nn.Parameter, False),
    ],
)
def test_weights_that_are_no_numbers(value, kind, refused):
    module = torch.nn.Linear(2, 2)
    module.extra = kind(torch.tensor([1.0, value, value]))
    if not refused:
        check_finite(module)
        return
    with pytest.raises(ModelError, match="no numbers") as caught:
        check_finite(module)
    assert "extra (2 of 3 elements)" in caught.value.why


def test_keys_map_both_ways(tiny_vit):
    for key in tiny_vit.state_dict():
        assert TORCHVISION.ours(TORCHVISION.theirs(key)) == key


def test_a_copy_of_a_file_has_the_same_hash(golden, tmp_path):
    source = golden / "torchvision_vit_pure_infsa.safetensors"
    copy = shutil.copy(source, tmp_path / "copy.safetensors")
    assert weights_hash(load_vit(source)) == weights_hash(load_vit(copy))
