"""Weight files: every kind that is read, and each way one can be broken."""

from __future__ import annotations

import argparse
import json
import re

import numpy as np
import pytest
import safetensors.torch
import torch
from infsa_models.checkpoint import load_vit, load_weights, save_vit, weights_hash
from infsa_models.weight_files import name_of

from infsa_deploy.errors import ModelError, UsageError

TOLD = {"variant": "pure", "num_heads": 2, "grid": (2, 3)}
SAVERS = {"safetensors": safetensors.torch.save_file, "bin": torch.save}


def save_shards(folder, state, kind, name="model"):
    """Two files and their index, as save_pretrained writes them; returns the index."""
    keys = sorted(state)
    shards = {f"{name}-0000{i + 1}-of-00002.{kind}": {k: state[k] for k in keys[i::2]} for i in range(2)}
    for file, tensors in shards.items():
        SAVERS[kind](tensors, folder / file)
    listed = {key: file for file, tensors in shards.items() for key in tensors}
    index = folder / f"{name}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return index


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin", ".pth.tar"])
@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saves(suffix, zipped, tiny_vit, tmp_path):
    path = tmp_path / f"model{suffix}"
    torch.save(tiny_vit.state_dict(), path, _use_new_zipfile_serialization=zipped)
    assert weights_hash(load_vit(path, **TOLD)) == weights_hash(tiny_vit)
    assert name_of(path) == "model"


@pytest.mark.parametrize("zipped", [True, False])
def test_plain_data_beside_the_weights(zipped, tiny_vit, tmp_path):
    beside = {
        "args": argparse.Namespace(lr=np.float64(0.1), epochs=np.int64(3), model="vit", tags=["a"]),
        "best": np.float32(0.5),
        "done": np.bool_(True),
        "epoch": 3,
    }
    torch.save({"model": tiny_vit.state_dict(), **beside}, tmp_path / "m.pth", _use_new_zipfile_serialization=zipped)
    state, metadata = load_weights(tmp_path / "m.pth")
    assert state.keys() == tiny_vit.state_dict().keys()
    assert {name: metadata[name] for name in beside} == beside


def test_older_numpy_named_its_module_otherwise(tmp_path):
    torch.save({"model": {"a.b": torch.ones(1)}, "best": np.float64(0.5)}, tmp_path / "m.pt", pickle_protocol=2,
               _use_new_zipfile_serialization=False)  # fmt: skip
    content = (tmp_path / "m.pt").read_bytes()
    assert b"numpy._core.multiarray" in content
    (tmp_path / "m.pt").write_bytes(content.replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray"))
    assert load_weights(tmp_path / "m.pt")[1]["best"] == 0.5


@pytest.mark.parametrize(("kind", "name"), [("safetensors", "model"), ("bin", "pytorch_model")])
@pytest.mark.parametrize("given", ["folder", "index"])
def test_shards(kind, name, given, tiny_vit, tmp_path):
    index = save_shards(tmp_path, tiny_vit.state_dict(), kind, name)
    path = tmp_path if given == "folder" else index
    assert weights_hash(load_vit(path, **TOLD)) == weights_hash(tiny_vit)
    assert name_of(path) == tmp_path.name


def test_a_folder_of_one_file(tiny_vit, tmp_path):
    save_vit(tiny_vit, tmp_path / "model.safetensors")
    assert weights_hash(load_vit(tmp_path)) == weights_hash(tiny_vit)


def break_shards(index, how):
    shards = sorted(index.parent.glob("model-0*"))
    listed = json.loads(index.read_text())
    if how == "missing":
        shards[1].unlink()
    elif how == "truncated":
        shards[1].write_bytes(shards[1].read_bytes()[:-1])
    elif how == "empty":
        shards[1].write_bytes(b"")
    elif how == "lacking":
        listed["weight_map"]["norm.extra"] = shards[0].name
    elif how == "elsewhere":
        listed["weight_map"]["norm.weight"] = "../other.safetensors"
    elif how == "no map":
        del listed["weight_map"]
    index.write_text("{" if how == "no json" else json.dumps(listed))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "model-00002-of-00002.safetensors is missing, file 2 of 2"),
        ("truncated", "not a whole safetensors file"),
        ("empty", "the file is empty"),
        ("lacking", "promises norm.extra in model-00001-of-00002.safetensors"),
        ("elsewhere", "../other.safetensors, which is not beside it"),
        ("no map", "has no weight_map"),
        ("no json", "is no JSON"),
    ],
)
def test_shards_that_are_not_whole(how, message, tiny_vit, tmp_path):
    index = save_shards(tmp_path, tiny_vit.state_dict(), "safetensors")
    break_shards(index, how)
    for path in (index, tmp_path):
        with pytest.raises(ModelError, match=re.escape(message)) as caught:
            load_vit(path, **TOLD)
        assert caught.value.fix


def test_one_shard_alone(tiny_vit, tmp_path):
    index = save_shards(tmp_path, tiny_vit.state_dict(), "safetensors")
    with pytest.raises(UsageError, match="one of several files") as caught:
        load_vit(tmp_path / "model-00001-of-00002.safetensors", **TOLD)
    assert str(index) in caught.value.fix


@pytest.mark.parametrize(
    ("files", "why", "fix"),
    [
        ([], "it is empty", "a folder that holds model.safetensors"),
        (["config.json", "README.md"], "it holds README.md, config.json", "a folder that holds model.safetensors"),
        (["best.ckpt"], "it holds best.ckpt", "best.ckpt"),
        (["adapter_config.json", "adapter_model.safetensors"], "adapter_config.json", "merge_and_unload"),
    ],
)
def test_folders_without_weights(files, why, fix, tmp_path):
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ModelError, match="a folder without weights") as caught:
        load_vit(tmp_path)
    assert why in caught.value.why
    assert fix in caught.value.fix


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".ckpt"])
@pytest.mark.parametrize("kind", ["missing", "a folder", "empty", "text", "truncated", "half"])
def test_files_that_are_not_whole(suffix, kind, tiny_vit, tmp_path):
    path = tmp_path / f"model{suffix}"
    if suffix == ".safetensors":
        save_vit(tiny_vit, path)
    else:
        torch.save(tiny_vit.state_dict(), path)
    content = path.read_bytes()
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind != "missing":
        cut = {"empty": 0, "text": 0, "truncated": len(content) - 1, "half": len(content) // 2}[kind]
        path.write_bytes(content[:cut] + (b"hello: no weights at all\n" if kind == "text" else b""))
    with pytest.raises(ModelError) as caught:
        load_vit(path)
    assert str(path) in caught.value.what
    assert len(caught.value.why.split()) > 2
    assert caught.value.exit_code == 4


def test_other_file_names_are_refused(tmp_path):
    (tmp_path / "model.h5").write_bytes(b"x")
    with pytest.raises(ModelError, match="no checkpoint we can read"):
        load_weights(tmp_path / "model.h5")


def test_the_pointer_of_git_lfs(tmp_path):
    (tmp_path / "m.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match="holds no weights") as caught:
        load_weights(tmp_path / "m.safetensors")
    assert caught.value.fix == "git lfs pull"


def test_a_torchscript_archive(tmp_path):
    with pytest.warns(DeprecationWarning, match="deprecated"):
        torch.jit.save(torch.jit.script(torch.nn.Identity()), tmp_path / "m.pt")
    with pytest.raises(ModelError, match="TorchScript archive"):
        load_weights(tmp_path / "m.pt")


class Trap:
    """Unpickles by creating a file, as an attacker's checkpoint would run a command."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("whole_module", [True, False])
def test_a_pickle_that_needs_code_is_refused_and_not_run(whole_module, tiny_vit, tmp_path):
    trap = tmp_path / "sprung"
    torch.save(tiny_vit if whole_module else {"weights": Trap(trap)}, tmp_path / "model.pt")
    with pytest.raises(ModelError, match="refused: reading it would run code") as caught:
        load_vit(tmp_path / "model.pt")
    assert "safetensors" in caught.value.fix
    assert ("infsa_models.vit.ViT" if whole_module else "io.open") in caught.value.why
    assert not trap.exists()


def test_a_pt_file_of_a_bare_tensor(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "model.pt")
    with pytest.raises(ModelError, match="no weights by name") as caught:
        load_vit(tmp_path / "model.pt")
    assert caught.value.why == "it holds a Tensor"
