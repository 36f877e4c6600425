"""Weights in and out of files: our .safetensors, torchvision's keys, and .pt without running its code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from infsa_deploy.errors import ModelError
from infsa_deploy.files import written_whole
from infsa_models import layout
from infsa_models.architecture import agreed, infer_config, recorded_facts
from infsa_models.attention import Hops
from infsa_models.vit import ViT

# Where training scripts keep the weights in a .pt.
NESTED_STATES = ("state_dict", "model_state_dict", "model")


def load_weights(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a .safetensors, .pt or .pth file, and what else the file says about them.

    Nothing in the file is executed.
    Returns: (state, metadata): tensors on the CPU as they are stored; metadata with JSON values decoded.
    Raises: ModelError for a file that is missing, empty, truncated, of another kind, or a pickle of code.
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise ModelError(
            f"{path} is no checkpoint we can read",
            f"its name ends in {path.suffix or 'nothing'!r}",
            "give a .safetensors, .pt or .pth file",
        )
    if not path.is_file():
        raise ModelError(f"{path} cannot be read", "there is no file of that name")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} cannot be read", "the file is empty", "download or save it again")
    state, metadata = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    return state, {key: _decoded(value) for key, value in metadata.items()}


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is not a whole safetensors file", str(error), "download or save it again") from error


def _read_pickle(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and "Unsupported class" not in str(error):
            raise ModelError(f"{path} is not a whole PyTorch checkpoint", _first_line(error)) from error
        raise ModelError(
            f"{path} is refused: reading it would run code",
            "it is a pickle of more than tensors, for example of a whole module",
            "if you trust the file, convert it once: safetensors.torch.save_file("
            "torch.load('model.pt', weights_only=False).state_dict(), 'model.safetensors')",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        why = "it does not begin as one does" if isinstance(error, KeyError) else _first_line(error)
        raise ModelError(f"{path} is not a whole PyTorch checkpoint", why, "download or save it again") from error
    if not isinstance(loaded, Mapping):
        raise ModelError(f"{path} holds no weights by name", f"it holds a {type(loaded).__name__}")
    nested = next((key for key in NESTED_STATES if isinstance(loaded.get(key), Mapping)), None)
    state = loaded if nested is None else loaded[nested]
    metadata = {} if nested is None else {key: value for key, value in loaded.items() if key != nested}
    tensors = {str(key).removeprefix("module."): value for key, value in state.items() if isinstance(value, Tensor)}
    return tensors, metadata


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def load_vit(
    path: str | os.PathLike[str],
    *,
    variant: str | None = None,
    num_heads: int | None = None,
    grid: tuple[int, int] | None = None,
    image_size: tuple[int, int] | None = None,
    hops: Hops | None = None,
    power_iterations: int | None = None,
) -> ViT:
    """Build the ViT a checkpoint was saved from, in float32 and eval mode.

    Read are our keys and those of torchvision's VisionTransformer, with its own softmax attention or with the
    authors' modules in it. The sizes come from the tensors. What tensors cannot say comes from the file's
    metadata, else from the arguments: variant (a file without rho_logit is softmax), num_heads (else what is
    usual for the width) and grid, the (rows, columns) of patches it was trained on (else square).

    Args: image_size: (height, width) to run at, if not the trained one; positions are interpolated.
        hops, power_iterations: chosen here, else recorded in the file, else 1.
    Raises: ModelError when keys are missing, extra or misshapen (all are named); UsageError when an argument
        is needed or contradicts the file.
    """
    state, metadata = load_weights(path)
    recorded = recorded_facts(path, metadata)
    facts = {
        **recorded,
        "variant": agreed("variant", variant, recorded.get("variant")),
        "num_heads": agreed("num_heads", num_heads, recorded.get("num_heads")),
        "grid": grid,
        "hops": recorded.get("hops", 1) if hops is None else hops,
        "power_iterations": recorded.get("power_iterations", 1) if power_iterations is None else power_iterations,
    }
    spelled = layout.key_speller(state)
    state = layout.in_our_names(state)
    config = infer_config(str(path), state, facts, spelled)
    with torch.device("meta"):
        model = ViT(config)
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()}, assign=True)
    model.eval()
    return model if image_size is None else model.set_image_size(image_size)


def load_into(model: ViT, path: str | os.PathLike[str]) -> None:
    """Copy the weights of a file, in our or torchvision's keys, into a model that is already built.

    Raises: ModelError when keys are missing, extra or misshapen (all are named); UsageError when the file
        records another attention variant or number of heads, which shapes would not show.
    """
    state, metadata = load_weights(path)
    recorded = recorded_facts(path, metadata)
    for name in ("variant", "num_heads"):
        agreed(name, getattr(model.config, name), recorded.get(name))
    load_state(model, layout.in_our_names(state), f"{path} does not fit the model", layout.key_speller(state))


def load_state(
    model: nn.Module,
    state: Mapping[str, Tensor],
    what: str = "the weights do not fit the model",
    spelled: Callable[[str], str] = str,
) -> None:
    """Copy the tensors into the model in place, converted to its dtypes.

    Args: what: the sentence an error begins with. spelled: the name of a key to show in it, from the key.
    Raises: ModelError naming all keys that are missing, extra or misshapen; the model is then left as it was.
    """
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    layout.check_state(what, state, shapes, spelled)
    model.load_state_dict(state)


def save_vit(model: ViT, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write the weights and the configuration to our .safetensors, whole or not at all.

    Raises: as written_whole.
    """
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    with written_whole(Path(path)) as scratch:
        safetensors.torch.save_file(state, scratch, {**(metadata or {}), "config": json.dumps(model.config.to_dict())})


def weights_hash(module: nn.Module) -> str:
    """SHA-256 in hex over the state of the module: sorted keys, dtypes, shapes and bytes; extra state as pickled."""
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, Tensor):  # what a submodule's get_extra_state returns
            digest.update(f"{key}\n".encode() + pickle.dumps(tensor))
            continue
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
