"""What one call needs: of a PyTorch program, run on tensors without data; of a model file, counted in its graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from infsa_deploy.graph.cost.free_axes import patch_grid
from infsa_deploy.graph.cost.operations import count_bytes, count_flops_by_type
from infsa_deploy.graph.store import load_model
from infsa_deploy.records.bench import TraceCost, Work
from infsa_deploy.records.model import ImageSpec


def trace_cost(module: nn.Module, image: ImageSpec, batch: int) -> TraceCost:
    """Run `module` once on a batch without data; takes no memory to speak of, whatever the size."""
    fake = FakeTensorMode()
    live = _LiveTensors()
    counter = FlopCounterMode(display=False, custom_mapping=CPU_FLOPS)
    with torch.no_grad(), fake:
        weights: dict[str, torch.Tensor] = {name: fake.from_tensor(value) for name, value in _tensors(module)}
        pixels = torch.empty(batch, image.channels, image.height, image.width)
        fixed = sum(tensor.nbytes for tensor in weights.values()) + pixels.nbytes
        with counter, live:
            logits = torch.func.functional_call(module, weights, (pixels,))
    config = getattr(module, "config", None)
    return TraceCost(
        work=Work(
            flops_by_type={"fp32": counter.get_total_flops()},
            weights_bytes=fixed - pixels.nbytes,
            input_bytes=pixels.nbytes,
            output_bytes=logits.nbytes,
            activation_bytes=None,
        ),
        peak_bytes=fixed + live.peak,
        largest_bytes=live.largest,
        largest_shape=live.largest_shape,
        tokens=getattr(config, "tokens", None),
    )


def count_work(path: Path, image: ImageSpec, batch: int) -> Work | None:
    """Count a call of an ONNX file of ours; None for one that works in tiles, whose loops have no count."""
    model, metadata = load_model(path)
    if metadata.tile_tokens:
        return None
    sizes = {"batch": batch, **patch_grid(image)}
    moved = count_bytes(model, sizes)
    parts = (moved[part] for part in ("weights", "inputs", "outputs", "activations"))
    return Work(dict(count_flops_by_type(model, sizes)), *parts)


class _LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages that operators made and that are still referred to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, tuple[Callable[[], bool], int]] = {}
        self.peak = self.largest = 0
        self.largest_shape: tuple[int, ...] = ()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_key(item) for item in _flat(args)}
        for tensor in _flat(result):
            if _key(tensor) not in given:
                storage = tensor.untyped_storage()
                self._alive[_key(tensor)] = (_weak(storage), storage.nbytes())
                if tensor.nbytes > self.largest:
                    self.largest, self.largest_shape = tensor.nbytes, tuple(tensor.shape)
        self._alive = {key: item for key, item in self._alive.items() if not item[0]()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def _weak(storage: torch.UntypedStorage) -> Callable[[], bool]:
    """Whether nothing refers to `storage` any more."""
    expired: Callable[[], bool] = StorageWeakRef(storage).expired  # type: ignore[no-untyped-call]
    return expired


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _flat(values: Any) -> list[torch.Tensor]:
    items = values if isinstance(values, tuple | list) else (values,)
    return [tensor for item in items for tensor in (_flat(item) if isinstance(item, list | tuple) else [item])
            if isinstance(tensor, torch.Tensor)]  # fmt: skip


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _fused_attention_flops(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """q kᵀ and the product with v, as PyTorch counts its fused kernels for GPUs; it leaves the CPU's out."""
    *outer, tokens, width = query
    products: int = 2 * math.prod(outer) * tokens * key[-2] * (width + value[-1])
    return products


CPU_FLOPS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flops}
