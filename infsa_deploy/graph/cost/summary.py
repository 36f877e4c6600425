"""What an exported ONNX file holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx_ir as ir

from infsa_deploy.graph.cost.free_axes import patch_grid
from infsa_deploy.graph.cost.operations import count_bytes, count_flops
from infsa_deploy.graph.store import load_model, weights_bytes
from infsa_deploy.records.export import GraphSummary


def summarise(path: Path) -> GraphSummary:
    """Summarise the model at `path`; FLOPs are of one image.

    Raises:
        ModelError: the file is missing, empty, truncated, not ONNX, or not ours.
    """
    model, metadata = load_model(path)
    sizes = {"batch": 1, **patch_grid(metadata.image)}
    images = fixed_batch(model) or 1
    flops = None if metadata.tile_tokens else {op: n // images for op, n in count_flops(model, sizes).most_common()}
    moved = None if metadata.tile_tokens else dict(count_bytes(model, sizes))
    moved = moved and {kind: n if kind == "weights" else n // images for kind, n in moved.items()}
    data = path.with_name(f"{path.name}.data")
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    return GraphSummary(
        model=str(path),
        bytes=path.stat().st_size + (data.stat().st_size if data.exists() else 0),
        opset=model.opset_imports[""],
        inputs={value.name or "": describe(value) for value in model.graph.inputs},
        outputs={value.name or "": describe(value) for value in model.graph.outputs},
        ops=dict(Counter(_op_name(node) for node in model.graph.all_nodes()).most_common()),
        parameters=sum(tensor.size for tensor in weights),
        weights_bytes=weights_bytes(model),
        flops=None if flops is None else sum(flops.values()),
        flops_by_op=flops or {},
        bytes_moved=moved,
        metadata=metadata,
    )


def fixed_batch(model: ir.Model) -> int | None:
    """How many images a run takes, or None where that is free."""
    shape = model.graph.inputs[0].shape
    return shape[0] if shape is not None and isinstance(shape[0], int) else None


def describe(value: ir.Value) -> str:
    """Type and shape of a graph input or output, for example `FLOAT [batch, 3, 224, 224]`."""
    axes = ", ".join(str(dim.value) if isinstance(dim, ir.SymbolicDim) else str(dim) for dim in value.shape or ())
    return f"{value.dtype} [{axes}]"


def _op_name(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
