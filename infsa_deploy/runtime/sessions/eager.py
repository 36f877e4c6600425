"""PyTorch eager execution of a reference model, in any floating type."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from infsa_deploy.export.interface import SINGLE_OUTPUT, flatten_outputs, input_names, own_output_names
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.sessions.protocol import Arrays, TensorInfo, check_feeds

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OUTPUT_AXES = {
    SINGLE_OUTPUT: ("batch", "classes"),
    "attention": ("batch", "layers", "heads", "rows", "columns"),
}


class EagerSession:
    """A copy of `module` in `dtype` on `device`; floating outputs are float32 arrays, float64 for fp64.

    Args:
        module: a model of any inputs and outputs.
        takes: its image input [B, C, H, W], if that is its only one; else all inputs, in the order of its parameters.
        dtype: type of weights, activations and floating inputs; these are fed as float32 all the same.

    Attributes:
        module: the copy.
        outputs: named as in an export. Before the first run: the logits, or what the module's `output_names` name;
            from then on what it returned, with the sizes it had.
    """

    runtime = "eager"

    def __init__(
        self, module: nn.Module, takes: ImageSpec | Sequence[TensorInfo], dtype: str = "fp32", device: str = "cpu"
    ) -> None:
        self._dtype, self._device = DTYPES[dtype], device
        self._wide = torch.float64 if dtype == "fp64" else torch.float32
        self._names = own_output_names(module)
        self.inputs: tuple[TensorInfo, ...] = _inputs(module, takes)
        self.outputs: tuple[TensorInfo, ...] = tuple(
            TensorInfo(name, OUTPUT_AXES.get(name, ()), _name(self._wide)) for name in self._names or (SINGLE_OUTPUT,)
        )
        self.module = copy.deepcopy(module).eval().to(device, DTYPES[dtype])

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run the module without gradients."""
        check_feeds(self.inputs, feeds)
        tensors = [self._placed(feeds[info.name]) for info in self.inputs]
        with torch.inference_mode():
            outputs = flatten_outputs(self.module(*tensors), self._names)
        found = {name: self._returned(tensor) for name, tensor in outputs.items()}
        if tuple(found) != tuple(info.name for info in self.outputs):
            self.outputs = tuple(TensorInfo(name, array.shape, str(array.dtype)) for name, array in found.items())
        return found

    def close(self) -> None:
        """Drop the weights."""
        del self.module

    def _placed(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.asarray(array, order="C")).to(self._device)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _returned(self, tensor: Tensor) -> npt.NDArray[Any]:
        on_host = tensor.to("cpu", self._wide) if tensor.is_floating_point() else tensor.cpu()
        array: npt.NDArray[Any] = on_host.numpy()
        return array


def _inputs(module: nn.Module, takes: ImageSpec | Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    if isinstance(takes, ImageSpec):
        (name,) = input_names(module, 1)
        return (TensorInfo(name, ("batch", takes.channels, takes.height, takes.width), "float32"),)
    names = input_names(module, len(takes))
    floating = ("float16", "bfloat16", "float32", "float64")
    return tuple(
        replace(info, name=name, dtype="float32" if info.dtype in floating else info.dtype)
        for name, info in zip(names, takes, strict=True)
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
