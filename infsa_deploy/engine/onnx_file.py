"""What the builder must know of an ONNX file before TensorRT reads it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infsa_deploy.errors import ModelError
from infsa_deploy.files import check_model_file
from infsa_deploy.records.model import METADATA_KEY, ModelMetadata, read_metadata

if TYPE_CHECKING:
    import onnx

DOMAIN = "infsa"
BODY_KEY = "infsa_deploy.body"  # metadata of a node that its plugin cannot run: why
PLUGIN_KEYS = ("plugin_namespace", "plugin_version")
PARSER_KEYS = frozenset({*PLUGIN_KEYS, "tensorrt_plugin_shape_input_indices"})  # not for the plugin
DYNAMIC_INT8 = frozenset({"DynamicQuantizeLinear", "MatMulInteger"})

Axes = tuple[int | str, ...]
NAMELESS = "axis "  # begins what stands for a free axis without a name


@dataclass(frozen=True)
class OnnxFile:
    """What an ONNX file says of itself.

    Attributes:
        inputs: axes of each graph input that is no weight: a size, or a name where it is free.
        plugins: number of custom nodes by the plugin they name, `namespace::op::version`.
        bodies: why a custom node cannot run as a plugin, by node name; it is built from its function body.
        attributes: names of the attributes that those nodes carry for their plugin, likewise.
        ops: names of the operators of the main graph.
        weights_bytes: size of all weights, external ones included.
        metadata: what infsa-deploy wrote into it, or None for a file from elsewhere.
    """

    path: Path
    inputs: dict[str, Axes]
    plugins: Counter[str]
    bodies: dict[str, str]
    attributes: dict[str, set[str]]
    ops: frozenset[str]
    weights_bytes: int
    metadata: ModelMetadata | None


def read_onnx(path: Path) -> OnnxFile:
    """Read the file; ModelError when it is missing, empty, truncated or not ONNX, or lacks weights kept apart."""
    import onnx

    check_model_file(path)
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own exception types differ between its releases
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"{path} is no ONNX model, or a truncated one.", reason, "export it again.") from error
    if not proto.graph.node:
        raise ModelError(f"{path} is no ONNX model, or an empty one.", "it has no nodes.", "export it again.")
    _check_external(proto.graph, path)
    custom = [node for node in proto.graph.node if node.domain == DOMAIN]
    bodies = {node.name: why for node in custom for why in _why_bodies(node)}
    custom = [node for node in custom if node.name not in bodies]
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    return OnnxFile(
        path=path,
        inputs=_inputs(proto.graph),
        plugins=Counter(map(_plugin, custom)),
        bodies=bodies,
        attributes=_attributes(custom),
        ops=frozenset(node.op_type for node in proto.graph.node),
        weights_bytes=sum(_tensor_bytes(tensor) for tensor in proto.graph.initializer),
        metadata=read_metadata(properties, path) if METADATA_KEY in properties else None,
    )


def check_for_engines(file: OnnxFile) -> None:
    """Raise ModelError for an export that was made for ONNX Runtime on a CPU, which no builder of engines parses."""
    tiles = file.metadata.tile_tokens if file.metadata else None
    if tiles or any(op.startswith("Sequence") for op in file.ops):
        raise ModelError(
            f"{file.path} works on its tokens in tiles{f' of {tiles}' if tiles else ''}.",
            "tiles are sequences of tensors, which TensorRT has not; they are for ONNX Runtime on a CPU.",
            "export it again without --tile-tokens.",
        )
    if DYNAMIC_INT8 & file.ops:
        raise ModelError(
            f"{file.path} is quantised dynamically.",
            "its ranges are taken at run time, which is for CPUs; engines need Q/DQ nodes with ranges of their own.",
            "export it again with --int8 --calibration FOLDER, or without --int8.",
        )


def _check_external(graph: onnx.GraphProto, path: Path) -> None:
    """Raise ModelError unless each weight that lies in a file of its own is there, all of it."""
    import onnx

    for tensor in graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        beside = path.parent / place["location"]
        needed = int(place.get("offset", 0)) + int(place.get("length") or _tensor_bytes(tensor))
        present = beside.stat().st_size if beside.is_file() else None
        if present is None or present < needed:
            why = f"it has {present:,} bytes; {tensor.name} ends at {needed:,}." if present is not None else ""
            raise ModelError(
                f"{beside}, which holds weights of {path.name}, {'is cut off' if why else 'does not exist'}.",
                why,
                f"copy {place['location']} along with the model, or export it again.",
            )


def _inputs(graph: onnx.GraphProto) -> dict[str, Axes]:
    weights = {tensor.name for tensor in graph.initializer}
    return {value.name: _axes(value) for value in graph.input if value.name not in weights}


def _axes(value: onnx.ValueInfoProto) -> Axes:
    dims = value.type.tensor_type.shape.dim
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{NAMELESS}{index}"
        for index, dim in enumerate(dims)
    )


def _why_bodies(node: onnx.NodeProto) -> list[str]:
    """Why the exporter says that the plugin cannot run the node: one reason or none."""
    return [entry.value for entry in node.metadata_props if entry.key == BODY_KEY]


def _plugin(node: onnx.NodeProto) -> str:
    """`namespace::op::version`; an attribute that is missing reads as empty, as the parser has it."""
    texts = {attribute.name: attribute.s.decode() for attribute in node.attribute}
    namespace, version = (texts.get(key, "") for key in PLUGIN_KEYS)
    return f"{namespace}::{node.op_type}::{version}"


def _attributes(nodes: Iterable[onnx.NodeProto]) -> dict[str, set[str]]:
    """Names by plugin, but for those that TensorRT's parser reads itself."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        names = {attribute.name for attribute in node.attribute}
        found.setdefault(_plugin(node), set()).update(names - PARSER_KEYS)
    return found


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    import onnx

    itemsize = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    count: int = math.prod(tensor.dims)
    return count * itemsize
