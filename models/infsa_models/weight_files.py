"""Weight files of any kind to what lies in them, without running any of their code.

A file is .safetensors or what torch.save wrote; several may make one checkpoint, with an index; a folder holds one
checkpoint, as Hugging Face's save_pretrained writes it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from infsa_deploy.errors import ModelError, UsageError

INDEX = ".index.json"
PICKLES = (".pt", ".pth", ".ckpt", ".bin", ".pth.tar")
SUFFIXES = (".safetensors", *PICKLES, INDEX)
IN_A_FOLDER = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(\.\w+)")
# Plain data that training scripts keep beside the weights. scalar() makes a number of a dtype and bytes; NumPy 1 names
# its module otherwise than NumPy 2.
_SCALAR = np.float64(0).__reduce__()[0]
BESIDE_WEIGHTS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    *{type(np.dtype(code)) for code in "?bhilqBHILQefdSU"},
]


def read_checkpoint(path: Path) -> tuple[Mapping[Any, Any], dict[str, str]]:
    """What a checkpoint holds, tensors on the CPU as they are stored, and the metadata of a .safetensors file.

    Raises: ModelError for a file that is missing, empty, truncated, of another kind, or a pickle of code; for a folder
        without weights, and for shards that are not all there.
    """
    path = _in_folder(path) if path.is_dir() else path
    if not path.name.endswith(SUFFIXES):
        raise ModelError(
            f"{path} is no checkpoint we can read",
            f"its name ends in {path.suffix or 'nothing'!r}",
            f"give a folder or a file of {', '.join(SUFFIXES)}",
        )
    _check_content(path)
    if path.name.endswith(INDEX):
        return _read_shards(path)
    shard = SHARD.fullmatch(path.name)
    if shard and (whole := path.with_name(f"{shard[1]}{shard[2]}{INDEX}")).is_file():
        raise UsageError(f"{path} is one of several files", f"{whole.name} names them all", f"give {whole}")
    return _read_file(path)


def name_of(path: Path) -> str:
    """A short name for the model of a checkpoint: the file's or folder's, or for an index its folder's."""
    if path.name.endswith(INDEX):
        return path.resolve().parent.name
    suffix = next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if path.name.endswith(suffix)), "")
    return path.name.removesuffix(suffix) or path.resolve().name


def config_beside(path: Path) -> dict[str, Any]:
    """The config.json in the folder of a checkpoint; empty if there is none. Raises: ModelError when it is no JSON."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    return _read_json(file) if file.is_file() else {}


def _in_folder(folder: Path) -> Path:
    found = next((folder / name for name in IN_A_FOLDER if (folder / name).is_file()), None)
    if found:
        return found
    held = sorted(item.name for item in folder.iterdir())
    why = f"it holds {', '.join(held[:5])}{', ...' if len(held) > 5 else ''}" if held else "it is empty"
    if "adapter_config.json" in held:
        fix = "merge the adapter into its model and save that: model.merge_and_unload().save_pretrained(folder)"
    elif weights := [name for name in held if name.endswith(SUFFIXES)]:
        fix = f"give the file itself: {folder / weights[0]}"
    else:
        fix = f"give a folder that holds {' or '.join(IN_A_FOLDER)}"
    raise ModelError(f"{folder} is a folder without weights", why, fix)


def _check_content(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"{path} cannot be read", "there is no file of that name", "check the path")
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise ModelError(f"{path} cannot be read", "the file is empty", "download or save it again")
    if start.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} holds no weights", "it is the pointer that Git LFS keeps for them", "git lfs pull")


def _read_file(path: Path) -> tuple[Mapping[Any, Any], dict[str, str]]:
    return _read_safetensors(path) if path.suffix == ".safetensors" else (_read_pickle(path), {})


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a whole safetensors file", str(error), "download or save it again") from error


def _read_pickle(path: Path) -> Mapping[Any, Any]:
    try:
        with safe_globals(BESIDE_WEIGHTS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an archive of TorchScript, which is refused below
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(loaded, Mapping):
        raise ModelError(
            f"{path} holds no weights by name",
            f"it holds a {type(loaded).__name__}",
            "save model.state_dict()",
        )
    return loaded


def _unreadable(path: Path, error: Exception) -> ModelError:
    text = str(error)
    if "TorchScript" in text:
        return ModelError(
            f"{path} is a TorchScript archive", "it holds a program, not weights by name", "save model.state_dict()"
        )
    if isinstance(error, pickle.UnpicklingError) and ("GLOBAL" in text or "Unsupported class" in text):
        return ModelError(
            f"{path} is refused: reading it would run code",
            f"it is a pickle of more than tensors{_globals_of(path, text)}, for example of a whole module",
            "if you trust the file, convert it once: safetensors.torch.save_file("
            "torch.load('model.pt', weights_only=False).state_dict(), 'model.safetensors')",
        )
    first = (text or type(error).__name__).splitlines()[0]
    why = "it does not begin as one does" if isinstance(error, KeyError) else first
    return ModelError(f"{path} is not a whole PyTorch checkpoint", why, "download or save it again")


def _globals_of(path: Path, message: str) -> str:
    """`: it names a, b`, the classes and functions that a pickle needs and may not have."""
    try:
        with safe_globals(BESIDE_WEIGHTS):
            named = sorted(get_unsafe_globals_in_checkpoint(path))
    except (ValueError, RuntimeError, pickle.UnpicklingError):  # the older format, which cannot be asked
        named = re.findall(r"GLOBAL (\S+) was not", message)[:1]
    shown = f"{', '.join(named[:4])}{', ...' if len(named) > 4 else ''}"
    return f" (it names {shown})" if named else ""


def _read_shards(index: Path) -> tuple[dict[str, Any], dict[str, str]]:
    listed = _read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise ModelError(f"{index} is no index of weights", "it has no weight_map", "download or save it again")
    tensors: dict[str, Any] = {}
    names = sorted(set(listed.values()))
    for position, name in enumerate(names, start=1):
        if Path(name).name != name:
            why = f"it names {name}, which is not beside it"
            raise ModelError(f"{index} is refused", why, "put the files and their index into one folder")
        shard = index.with_name(name)
        if not shard.is_file():
            why = f"{name} is missing, file {position} of {len(names)} that {index.name} names"
            raise ModelError(f"{index.parent} is not a whole checkpoint", why, "download or save that file again")
        _check_content(shard)
        tensors |= _read_file(shard)[0]
    lacking = sorted(set(listed) - set(tensors))
    if lacking:
        why = f"the index promises {lacking[0]} in {listed[lacking[0]]}, which has no such tensor"
        raise ModelError(f"{index.parent} is not a whole checkpoint", why, "download or save it again")
    return tensors, {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read", f"it is no JSON: {error}", "download or save it again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} cannot be read", "it holds no JSON object", "download or save it again")
    return found
