"""Giving each custom node its two lives: a function body for any runtime, plugin attributes for TensorRT.

1. A node of domain `infsa` gets `plugin_namespace` and `plugin_version`, by which TensorRT finds its plugin.
2. An optional output that nothing reads is dropped from the node.
3. The function body of each op in use becomes a model-local function; it declares the plugin attributes too.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx import FunctionProto

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, PLUGIN_ATTRIBUTES, VERSION, Op


def attach_ops(model: ir.Model) -> ir.Model:
    """Attach bodies and plugin attributes; ModelError for a node of the domain that is no op of ours."""
    known = {op.contract.name: op for op in OPS}
    used: dict[str, Op] = {}
    for node in model.graph.all_nodes():
        if node.domain != DOMAIN:
            continue
        if node.op_type not in known:
            raise ModelError(
                f"node {node.name!r} has unknown op {DOMAIN}.{node.op_type}.",
                f"this version knows {', '.join(sorted(known))}.",
                "export the model again with this version.",
            )
        used[node.op_type] = known[node.op_type]
        node.attributes.update({name: ir.AttrString(name, value) for name, value in PLUGIN_ATTRIBUTES.items()})
        _drop_unread_outputs(node, used[node.op_type])
    for op in used.values():
        function = ir.serde.deserialize_function(function_body(op))
        model.functions[function.identifier()] = function
    if used:
        model.opset_imports[DOMAIN] = VERSION
    return model


def function_body(op: Op) -> FunctionProto:
    """The op's function body as ONNX, with the attributes a node carries."""
    body: FunctionProto = op.body.to_function_proto()
    body.attribute.extend(PLUGIN_ATTRIBUTES)
    return body


def _drop_unread_outputs(node: ir.Node, op: Op) -> None:
    required = sum(not spec.optional for spec in op.contract.outputs)
    while len(node.outputs) > required and not node.outputs[-1].uses() and not node.outputs[-1].is_graph_output():
        node.resize_outputs(len(node.outputs) - 1)
