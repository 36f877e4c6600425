"""Weights in and out of files: our .safetensors, torchvision's keys, and .pt without running its code."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import pickle
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_models import layout
from infsa_models.attention import Hops
from infsa_models.vit import ViT, ViTConfig

STANDARD_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16}
VARIANT_NAMES = {"pure_infsa": "pure", "linear_infsa": "linear"}  # the authors' names -> ours
NESTED_STATES = (
    "state_dict",
    "model_state_dict",
    "model",
)  # where training scripts keep the weights in a .pt
T = TypeVar("T")


def load_weights(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a .safetensors, .pt or .pth file, and what else the file says about them.

    Nothing in the file is executed. Returns (state, metadata): tensors on the CPU as they are stored, and the
    metadata with JSON values decoded.
    Raises: ModelError when the file is missing, empty, truncated, of another kind, or a pickle that needs code.
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
        raise ModelError(
            f"{path} is not a whole safetensors file", str(error), "download or save it again"
        ) from error


def _read_pickle(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and "Unsupported class" not in str(error):
            raise ModelError(f"{path} is not a whole PyTorch checkpoint", _first_line(error)) from error
        raise ModelError(
            f"{path} is refused: reading it would run code",
            "it is a pickle of more than tensors, for example of a whole module",
            "where you trust the file, convert it once: "
            "safetensors.torch.save_file(torch.load(FILE, weights_only=False).state_dict(), 'model.safetensors')",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} is not a whole PyTorch checkpoint", _first_line(error)) from error
    if not isinstance(loaded, Mapping):
        raise ModelError(f"{path} holds no weights by name", f"it holds a {type(loaded).__name__}")
    nested = next((key for key in NESTED_STATES if isinstance(loaded.get(key), Mapping)), None)
    state = loaded if nested is None else loaded[nested]
    metadata = {} if nested is None else {key: value for key, value in loaded.items() if key != nested}
    tensors = {
        str(key).removeprefix("module."): value for key, value in state.items() if isinstance(value, Tensor)
    }
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
    authors' modules in it. The sizes come from the tensors. What tensors cannot say comes from the file's metadata,
    else from the arguments: variant (a file without rho_logit is softmax), num_heads (else what is usual for the
    width) and grid, the (rows, columns) of patches it was trained on (else square).

    Args: image_size: (height, width) to run at, if not the trained one; positions are interpolated.
        hops, power_iterations: chosen here, else recorded in the file, else 1.
    Raises: ModelError when keys are missing, extra or misshapen (all are named); UsageError when an argument
        is needed or contradicts the file.
    """
    state, metadata = load_weights(path)
    recorded = _recorded(metadata)
    torchvision = layout.is_torchvision(state)
    if torchvision:
        state = layout.from_torchvision(state)
    config = _infer_config(path, state, recorded, torchvision, variant, num_heads, grid)
    config = replace(
        config,
        hops=recorded.get("hops", 1) if hops is None else hops,
        power_iterations=recorded.get("power_iterations", 1)
        if power_iterations is None
        else power_iterations,
    )
    with torch.device("meta"):
        model = ViT(config)
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()}, assign=True)
    model.requires_grad_(True).eval()
    return model if image_size is None else model.at_image_size(image_size)


def _recorded(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What the metadata says about the architecture, in our terms."""
    config = metadata.get("config")
    recorded = {**metadata, **(config if isinstance(config, dict) else {})}
    variant = recorded.get("variant")
    recorded["variant"] = VARIANT_NAMES.get(variant, variant) if isinstance(variant, str) else None
    recorded["depth"] = recorded.get("depth", recorded.get("num_layers"))
    return recorded


def _infer_config(
    path: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    recorded: Mapping[str, Any],
    torchvision: bool,
    variant: str | None,
    num_heads: int | None,
    grid: tuple[int, int] | None,
) -> ViTConfig:
    variant = _agreed("variant", variant, recorded["variant"])
    has_rho = any(key.endswith(".rho_logit") for key in state) if variant is None else variant != "softmax"
    shapes = layout.expected_shapes(recorded["depth"] or layout.depth_of(state), has_rho=has_rho)
    if not set(shapes) & set(state):
        raise ModelError(
            f"{path} holds no ViT that we know",
            f"its keys are {', '.join(sorted(state)[:5]) or 'none'}{', ...' if len(state) > 5 else ''}",
        )
    sizes = layout.solve_sizes(state, shapes)
    solved = {
        key: tuple(s if isinstance(s, int) else sizes.get(s, -1) for s in shape)
        for key, shape in shapes.items()
    }
    _check_state(f"{path} does not fit", state, solved, layout.torchvision_name if torchvision else str)
    if variant is None and has_rho:
        raise UsageError(
            f"{path} does not say which attention it was trained with",
            "the weights of pure and linear have the same shapes",
            "state the variant: pure or linear",
        )
    heads = _agreed("num_heads", num_heads, recorded.get("num_heads")) or STANDARD_HEADS.get(sizes["E"])
    if heads is None:
        raise UsageError(
            f"{path} does not say how many attention heads it has",
            f"shapes cannot tell, and a width of {sizes['E']} has no usual number",
            "state num_heads",
        )
    rows, columns = _trained_grid(path, sizes["T"] - 1, sizes["P"], grid, recorded.get("image_size"))
    return ViTConfig(
        variant=variant or "softmax",
        image_size=(rows * sizes["P"], columns * sizes["P"]),
        patch_size=sizes["P"],
        in_channels=sizes["C"],
        embed_dim=sizes["E"],
        depth=sum(key.endswith("norm1.weight") for key in shapes),
        num_heads=heads,
        mlp_dim=sizes["M"],
        num_classes=sizes["K"],
    )


def _agreed(name: str, stated: T | None, recorded: T | None) -> T | None:
    if stated is not None and recorded is not None and stated != recorded:
        raise UsageError(
            f"{name} {stated} contradicts the checkpoint", f"the file records {recorded}", f"leave out {name}"
        )
    return recorded if stated is None else stated


def _trained_grid(
    path: str | os.PathLike[str],
    patches: int,
    patch_size: int,
    stated: tuple[int, int] | None,
    image_size: Any,
) -> tuple[int, int]:
    if stated is None and image_size is not None:
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        stated = height // patch_size, width // patch_size
    side = round(patches**0.5)
    rows, columns = stated or (side, side)
    if rows * columns != patches:
        raise UsageError(
            f"{path} has positions for {patches} patches, which are not a grid of {rows}x{columns}",
            "positions cannot be placed without the grid they were trained on",
            f"state a grid (rows, columns) of {patches} patches",
        )
    return rows, columns


def load_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors into the model in place, converted to its dtypes.

    Raises: ModelError naming all keys that are missing, extra or misshapen; the model is then left as it was.
    """
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    _check_state("the weights do not fit the model", state, shapes)
    model.load_state_dict(state)


def _check_state(
    what: str, state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], spelled: Any = str
) -> None:
    """Raise ModelError unless keys and shapes agree; -1 is a size unknown, `spelled` names keys as the file does."""
    missing = {spelled(key): key for key in sorted(set(shapes) - set(state))}
    extra = {spelled(key): key for key in sorted(set(state) - set(shapes))}
    lines = [f"missing: {name}{_nearest(name, extra, 'the file has')}" for name in missing]
    lines += [
        f"extra: {name}{_nearest(name, missing or map(spelled, shapes), 'did it mean')}" for name in extra
    ]
    for key in sorted(set(shapes) & set(state)):
        tensor, shape = state[key], shapes[key]
        fits = tensor.ndim == len(shape) and all(
            want in (-1, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not (fits and tensor.is_floating_point()):
            wanted = str(list(shape)).replace("-1", "any")
            lines.append(
                f"misshapen: {spelled(key)} is {tensor.dtype} {list(tensor.shape)}, expected {wanted} of floats"
            )
    if lines:
        raise ModelError(
            what,
            "\n       ".join(lines),
            "rename or reshape these keys, or state the right model for the file",
        )


def _nearest(name: str, others: Any, label: str) -> str:
    near = difflib.get_close_matches(name, list(others), n=1, cutoff=0.7)
    return f" ({label} {near[0]}?)" if near else ""


def save_vit(model: ViT, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write the weights and the configuration to our .safetensors, whole or not at all.

    Raises: HostError when the folder is missing or cannot be written to.
    """
    path = Path(path)
    state = {key: tensor.detach().cpu().contiguous() for key, tensor in model.state_dict().items()}
    content = safetensors.torch.save(
        state, {**(metadata or {}), "config": json.dumps(model.config.to_dict())}
    )
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise HostError(
            f"{path} cannot be written", str(error), "choose a folder you may write to"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def weights_hash(module: nn.Module) -> str:
    """SHA-256 in hex over the state of the module: sorted keys, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{key} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
