"""Build a user's own module again and run it: in float64 for the truth, in an artefact's type for the yardstick.

Neither contains anything that an export rewrites. Below float32 the weights, the inputs and the output of every module
are rounded to the type, and the arithmetic is in float32, as the sums are on hardware that has the type: a formula
that overflows in the half arithmetic of a CPU would excuse anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from infsa_models.checkpoint import weights_hash
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import DeployError, ModelError
from infsa_deploy.export.interface import module_outputs
from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.sources import Reference, load_reference
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.runtime.sessions.protocol import Arrays
from infsa_deploy.validation.tolerance import ROUNDOFF, Wide

WIDE = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float32, "bf16": torch.float32}
NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def rebuild_reference(metadata: ModelMetadata, weights: Path | None = None, module: str | None = None) -> Reference:
    """Build the reference model that `metadata` names, from `weights` or `module` where given instead.

    Raises:
        ModelError: the metadata name no source, or it cannot be built.
    """
    source = metadata.source
    if weights:
        source = replace(source, weights=str(weights.resolve()))
    if module:
        size = metadata.image.height, metadata.image.width
        source = ModelSource(module=module, image_size=size, hops=source.hops, power_iterations=source.power_iterations)
    if source == ModelSource():
        raise ModelError(
            "the model does not say where its reference comes from.",
            "it was exported from a module in memory.",
            "name it: --module package.module:factory",
        )
    return load_reference(source)


def check_same_weights(reference: Reference, metadata: ModelMetadata, path: Path) -> None:
    """Raise ModelError unless `reference` has the weights that `path` was exported from."""
    found = weights_hash(reference.module)
    if found != metadata.weights_sha256:
        raise ModelError(
            f"the reference model is not the one {path} was exported from.",
            f"its weights hash to {found[:12]}, the model records {metadata.weights_sha256[:12]}.",
            "give the original checkpoint with --weights, or export again.",
        )


class ReferenceRun:
    """A copy of `module` that computes in `dtype`: fp64, fp32, fp16 or bf16. See above.

    Attributes:
        module: the copy, in eval mode.
    """

    def __init__(self, module: nn.Module, dtype: str, device: str = "cpu") -> None:
        self.module, self._wide = copied(module).eval().to(device, WIDE[dtype]), WIDE[dtype]
        self._device = device
        self._change: Callable[[Tensor], Tensor] = lambda tensor: tensor
        if dtype in NARROW:
            self._change_all(lambda tensor: tensor.to(NARROW[dtype]).to(tensor.dtype))

    def _change_all(self, change: Callable[[Tensor], Tensor]) -> None:
        """Apply `change` to the floating weights now, and to inputs and every module's output in each run."""
        self._change = change
        with torch.no_grad():
            for weight in _weights(self.module):
                weight.copy_(change(weight))
        for child in self.module.modules():
            child.register_forward_hook(lambda _module, _inputs, output: _changed(output, change))

    def __call__(self, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Run the module on arrays in the order of its parameters: float64 outputs, named as an export names them."""
        tensors = [torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for array in feeds.values()]
        wide = [self._change(t.to(self._wide)) if t.is_floating_point() else t for t in tensors]
        try:
            found = module_outputs(self.module, wide)
        except DeployError:
            raise
        except Exception as error:  # whatever a user's module raises
            raise ModelError(
                f"the reference model fails in {str(self._wide).removeprefix('torch.')}.",
                f"{type(error).__name__}: {error}".splitlines()[0],
                "have its forward take the type of its weights and inputs from them.",
            ) from error
        return {name: tensor.double().cpu().numpy() for name, tensor in found.items()}

    def inner(self, feeds: Mapping[str, npt.NDArray[Any]], names: Collection[str]) -> dict[str, Wide]:
        """Run the module and return what these submodules gave, in the order of their ends; of several tensors one."""
        outputs: dict[str, Wide] = {}

        def keep(name: str, output: object) -> None:
            first = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(first, Tensor) and first.is_floating_point():
                outputs[name] = first.double().cpu().numpy()

        modules = {name: child for name, child in self.module.named_modules() if name in names}
        hooks = [
            child.register_forward_hook(lambda _module, _inputs, output, name=name: keep(name, output))
            for name, child in modules.items()
        ]
        self(feeds)
        for hook in hooks:
            hook.remove()
        return outputs


class DisturbedRun(ReferenceRun):
    """A copy of `module` in float64; weights, inputs and modules' outputs are off by about one u of `dtype`."""

    def __init__(self, module: nn.Module, dtype: str, seed: int) -> None:
        super().__init__(module, "fp64")
        generator = torch.Generator().manual_seed(seed)

        def disturb(tensor: Tensor) -> Tensor:
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            return tensor * (1 + ROUNDOFF[dtype] * noise)

        self._change_all(disturb)


def rounded_tensors(module: nn.Module) -> int:
    """How many tensors a narrow type rounds in a run: the weights, and the output of each module once."""
    return len(_weights(module)) + sum(1 for _ in module.modules())


def _weights(module: nn.Module) -> list[Tensor]:
    return [tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()]


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`change` applied to each floating tensor in `value`."""
    return pytree.tree_map_only(Tensor, lambda t: change(t) if t.is_floating_point() else t, value)


class ReferenceOutputs:
    """Outputs of a reference by input and type, so that files of one model do not each compute them.

    Only those of one model are kept, the last.
    """

    def __init__(self) -> None:
        self._model: Hashable = None
        self._outputs: dict[tuple[str, bytes], Arrays] = {}

    def begin(self, model: Hashable) -> None:
        """From here on outputs are those of `model`."""
        if model != self._model:
            self._model, self._outputs = model, {}

    def kept(self, module: nn.Module, dtype: str) -> Callable[[Arrays], Arrays]:
        """What runs `module` in `dtype`, made for the first batch that is not known."""
        opened = cache(lambda: ReferenceRun(module, dtype))

        def run(feeds: Arrays) -> Arrays:
            key = (dtype, _digest(feeds))
            if key not in self._outputs:
                self._outputs[key] = opened()(feeds)
            return self._outputs[key]

        return run


def _digest(feeds: Arrays) -> bytes:
    digest = hashlib.sha256()
    for name, array in feeds.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
