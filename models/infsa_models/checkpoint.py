"""Models in and out of checkpoints: ours, and those of torchvision, timm and Hugging Face."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from infsa_deploy.errors import ModelError
from infsa_deploy.files import written_whole
from infsa_models import layout
from infsa_models.architecture import agreed, infer_config, recorded_facts
from infsa_models.attention import Hops
from infsa_models.namings import in_our_names, is_hugging_face, naming_of
from infsa_models.vit import LAYER_NORM_EPS, ViT
from infsa_models.weight_files import config_beside, read_checkpoint
from infsa_models.weight_sets import choose_weights


def load_weights(
    path: str | os.PathLike[str], key: str | None = None, *, note: Callable[[str], None] = lambda line: None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights of a checkpoint, and what else it says about them.

    A checkpoint is a .safetensors file, one that torch.save wrote, the index of several, or a folder as Hugging Face
    writes it. Nothing in it is executed. Words that wrappers put before each key are taken off.

    Args:
        key: which weights, where the checkpoint holds several sets: `model_ema`, for example.
        note: told what was left aside.
    Returns: (state, metadata): tensors on the CPU as they are stored; metadata with JSON values decoded.
    Raises: ModelError for what is missing, empty, truncated, of another kind, or a pickle of code; UsageError when
        `key` is needed or names nothing.
    """
    path = Path(path)
    loaded, recorded = read_checkpoint(path)
    state = choose_weights(path, loaded, key, note)
    config = config_beside(path) if is_hugging_face(state) else {}
    others = {str(name): value for name, value in loaded.items() if not isinstance(value, Tensor)}
    metadata = {**others, **({"config": config} if config else {}), **recorded}
    return state, {name: _decoded(value) for name, value in metadata.items()}


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
    key: str | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> ViT:
    """Build the ViT a checkpoint was saved from, in float32 and eval mode.

    Read are our keys and those of the ViTs of torchvision, timm and Hugging Face, with their own softmax attention or
    with the authors' modules in them. The sizes come from the tensors. What tensors cannot say comes from the file's
    metadata, else from the arguments: variant (a file without rho_logit is softmax), num_heads (else what is
    usual for the width) and grid, the (rows, columns) of patches it was trained on (else square).

    Args: image_size: (height, width) to run at, if not the trained one; positions are interpolated.
        hops, power_iterations: chosen here, else recorded in the file, else 1.
        key, note: see load_weights; also told are the types of weights that are not float32.
    Raises: ModelError when keys are missing, extra or misshapen (all are named); UsageError when an argument
        is needed or contradicts the file.
    """
    state, metadata = load_weights(path, key, note=note)
    recorded = recorded_facts(path, metadata)
    if is_hugging_face(state) and "norm_eps" not in recorded:
        raise ModelError(
            f"{path} has Hugging Face's keys and no config.json beside it",
            "the number that its norms add to the variance stands there, and models differ in it",
            "put the model's config.json into the folder of the weights",
        )
    facts = {
        **recorded,
        "variant": agreed("variant", variant, recorded.get("variant")),
        "num_heads": agreed("num_heads", num_heads, recorded.get("num_heads")),
        "grid": grid,
        "norm_eps": recorded.get("norm_eps", LAYER_NORM_EPS),
        "hops": recorded.get("hops", 1) if hops is None else hops,
        "power_iterations": recorded.get("power_iterations", 1) if power_iterations is None else power_iterations,
    }
    naming, state = naming_of(state), in_our_names(state)
    config = infer_config(str(path), state, facts, naming.theirs)
    _note_types(state, note)
    with torch.device("meta"):
        model = ViT(config)
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()}, assign=True)
    model.eval()
    return model if image_size is None else model.set_image_size(image_size)


def _note_types(state: Mapping[str, Tensor], note: Callable[[str], None]) -> None:
    counts = Counter(str(t.dtype).removeprefix("torch.") for t in state.values() if t.dtype != torch.float32)
    if counts:
        listed = " and ".join(f"{count} in {dtype}" for dtype, count in counts.items())
        note(f"of {len(state)} weight tensors {listed}: taken to float32")


def load_into(
    model: ViT,
    path: str | os.PathLike[str],
    key: str | None = None,
    *,
    note: Callable[[str], None] = lambda line: None,
) -> None:
    """Copy the weights of a checkpoint that load_vit reads into a model that is already built.

    Args: key, note: see load_vit.
    Raises: ModelError when keys are missing, extra or misshapen (all are named); UsageError when the file
        records another attention variant, number of heads or epsilon of norms, which shapes would not show.
    """
    state, metadata = load_weights(path, key, note=note)
    recorded = recorded_facts(path, metadata)
    for name in ("variant", "num_heads", "norm_eps"):
        agreed(name, getattr(model.config, name), recorded.get(name))
    naming, state = naming_of(state), in_our_names(state)
    load_state(model, state, f"{path} does not fit the model", naming.theirs)
    _note_types(state, note)


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
    """SHA-256 in hex over the tensors in the state of the module: sorted keys, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, Tensor):  # the extra state of a module, of any type
            continue
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_finite(module: nn.Module) -> None:
    """Raise ModelError, naming the first ones, if weights are NaN or infinite.

    A buffer may hold infinities: masks do. Of buffers only those that are saved count.
    """
    wrong: list[str] = []
    parameters = {name for name, _ in module.named_parameters()}
    for key, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        whole = tensor.isfinite() if key in parameters else ~tensor.isnan()
        if not bool(whole.all()):
            wrong.append(f"{key} ({int((~whole).sum())} of {tensor.numel()} elements)")
    if wrong:
        more = f" and {len(wrong) - 5} more tensors" if len(wrong) > 5 else ""
        raise ModelError(
            "the model has weights that are no numbers",
            f"NaN or infinite are: {', '.join(wrong[:5])}{more}",
            "take a checkpoint from before the training diverged",
        )
