"""How much memory a graph's activations need at once, from the shapes recorded in it.

Nodes run in the order of the graph; a tensor lives from the node that makes it to the last one that reads it. What
a custom op's function body holds meanwhile is in the op's contract. In-place reuse is not assumed, and tiles, which
do not grow with the image, are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from infsa_deploy.graph.cost.free_axes import COLUMNS, ROWS
from infsa_deploy.graph.cost.operations import Sizes, bound_op, static_shape
from infsa_deploy.graph.store import weights_bytes
from infsa_deploy.ops.contract import DOMAIN
from infsa_deploy.records.model import ImageSpec, MemoryNeed

FITTED_SIDES = (64, 128, 256)  # patches a side at which a free size is evaluated; three fix the polynomial


def memory_need(model: ir.Model, image: ImageSpec, patch: int | None) -> MemoryNeed:
    """What running the model needs, for its one size or, where the size is free, for any."""
    weights = weights_bytes(model)
    if image.multiple_of is None:
        return MemoryNeed(weights, peak_activation_bytes(model, {"batch": 1}), patch=patch)
    tokens = np.array([side**2 + 1 for side in FITTED_SIDES], float)
    peaks = [peak_activation_bytes(model, {"batch": 1, ROWS: side, COLUMNS: side}) for side in FITTED_SIDES]
    constant, linear, square = np.linalg.solve(np.vander(tokens, 3, increasing=True), np.array(peaks, float))
    return MemoryNeed(weights, float(constant), float(linear), float(square), patch)


def peak_activation_bytes(model: ir.Model, sizes: Sizes) -> int:
    """The largest number of bytes that inputs and activations take at one time; `sizes` gives the free axes."""
    last_use = _last_uses(model.graph)
    alive = {value: _bytes(value, sizes) for value in model.graph.inputs}
    peak = 0
    for index, node in enumerate(model.graph):
        alive |= {value: _bytes(value, sizes) for value in node.outputs}
        peak = max(peak, sum(alive.values()) + _workspace(node, sizes))
        alive = {value: size for value, size in alive.items() if last_use.get(value, -1) > index}
    return peak


def _last_uses(graph: ir.Graph) -> Mapping[ir.Value, int]:
    """For each value the number of the last node that reads it, within a subgraph too; outputs live to the end."""
    last: dict[ir.Value, int] = {}
    for index, node in enumerate(graph):
        inner = (n for attribute in node.attributes.values() for g in _graphs(attribute) for n in g.all_nodes())
        for reader in (node, *inner):
            last |= {value: index for value in reader.inputs if value is not None}
    return last | dict.fromkeys(graph.outputs, len(graph))


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []


def _bytes(value: ir.Value, sizes: Sizes) -> int:
    if isinstance(value.type, ir.SequenceType):
        (reader, _), *_ = value.uses()
        value = reader.outputs[0]  # a sequence of tiles weighs what they do when joined
    if value.shape is None or value.dtype is None:
        return 0
    return int(math.prod(static_shape(value, sizes)) * value.dtype.itemsize)


def _workspace(node: ir.Node, sizes: Sizes) -> int:
    if node.domain != DOMAIN:
        return 0
    op, axes, attributes = bound_op(node, sizes)
    return op.workspace_bytes(axes, attributes)
