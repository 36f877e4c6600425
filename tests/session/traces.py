"""Traces by torch, each made once a run: one takes a second or two, and most tests are about what comes after it."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

LARGEST_BYTES = 20e6  # of a module's weights: more would take longer to write and read than to trace


def remembered(export: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Return `torch.onnx.export` with a memory: the graph of an earlier call, where all that it is given is the same.

    The memory is the content of `folder`, and processes may share it. What fails, or cannot be pickled, is traced anew
    each time.
    """

    def traced(module: nn.Module, examples: Sequence[torch.Tensor], **options: Any) -> Any:
        key = _key(module, examples, options)
        path = folder / f"{key}.onnx"
        if key and path.exists():
            return SimpleNamespace(model=ir.load(path))
        program = export(module, examples, **options)
        if not key:
            return program
        draft = folder / f"{key}.{os.getpid()}"
        onnx.save(ir.to_proto(program.model), draft)
        os.replace(draft, path)
        return SimpleNamespace(model=ir.load(path))  # as later calls get it

    return traced


def _key(module: nn.Module, examples: Sequence[torch.Tensor], options: Mapping[str, Any]) -> str | None:
    """Hash of the module with its weights and of the call; None for what is too large or cannot be pickled."""
    if isinstance(module, torch.export.ExportedProgram):
        return _key_of_program(module, options)
    if sum(tensor.nbytes for tensor in module.state_dict().values()) > LARGEST_BYTES:
        return None
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(module)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    call = [repr([(tensor.shape, tensor.dtype) for tensor in examples])]
    call += [f"{name}={options[name]!r}" for name in sorted(options) if name != "custom_translation_table"]
    return hashlib.sha256(buffer.getvalue() + "\n".join(call).encode()).hexdigest()[:32]


def _key_of_program(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> str | None:
    tensors = {**program.state_dict, **program.constants}
    if sum(tensor.nbytes for tensor in tensors.values() if isinstance(tensor, torch.Tensor)) > LARGEST_BYTES:
        return None
    buffer = io.BytesIO()
    _Pickler(buffer).dump({name: tensors[name] for name in sorted(tensors)})
    call = [f"{name}={options[name]!r}" for name in sorted(options) if name != "custom_translation_table"]
    return hashlib.sha256(buffer.getvalue() + "\n".join([str(program), *call]).encode()).hexdigest()[:32]


class _Pickler(pickle.Pickler):
    """Writes tensors by their content and the place they first occur at: torch's own pickles hold addresses."""

    def __init__(self, target: io.BytesIO) -> None:
        super().__init__(target)
        self.places: dict[int, int] = {}

    def persistent_id(self, value: Any) -> tuple[object, ...] | None:
        if not isinstance(value, torch.Tensor):
            return None
        content = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        about = (type(value).__name__, str(value.dtype), str(tuple(value.shape)), str(value.requires_grad))
        place = self.places.setdefault(id(value), len(self.places))
        return (place, *about, hashlib.sha256(content).hexdigest())
