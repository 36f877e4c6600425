"""PyTorch eager execution of a reference model, in any floating type."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from infsa_deploy.records import ImageSpec
from infsa_deploy.runtime.protocol import Arrays, TensorInfo, check_feeds

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OUTPUT_AXES = {"logits": ("batch", "classes"), "attention": ("batch", "layers", "heads", "rows", "columns")}


class EagerSession:
    """A copy of `module` in `dtype` on `device`; inputs and outputs are float32 arrays, float64 for fp64.

    Attributes:
        module: the reference model, image [B, C, H, W] -> logits [B, classes], or what its `output_names` name.
    """

    runtime = "eager"

    def __init__(self, module: nn.Module, image: ImageSpec, dtype: str = "fp32", device: str = "cpu") -> None:
        self.module = copy.deepcopy(module).eval().to(device, DTYPES[dtype])
        self._dtype, self._device = DTYPES[dtype], device
        self._wide = torch.float64 if dtype == "fp64" else torch.float32
        name = next(iter(inspect.signature(module.forward).parameters))
        shape = ("batch", image.channels, image.height, image.width)
        wide = str(self._wide).removeprefix("torch.")
        self.inputs: tuple[TensorInfo, ...] = (TensorInfo(name, shape, "float32"),)
        names = getattr(module, "output_names", ("logits",))
        self.outputs: tuple[TensorInfo, ...] = tuple(TensorInfo(name, OUTPUT_AXES[name], wide) for name in names)

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run the module without gradients."""
        check_feeds(self.inputs, feeds)
        image = torch.from_numpy(feeds[self.inputs[0].name]).to(self._device, self._dtype)
        with torch.inference_mode():
            found = self.module(image)
        tensors = found if isinstance(found, tuple) else (found,)
        return {info.name: t.to("cpu", self._wide).numpy() for info, t in zip(self.outputs, tensors, strict=True)}

    def close(self) -> None:
        """Drop the weights."""
        del self.module
