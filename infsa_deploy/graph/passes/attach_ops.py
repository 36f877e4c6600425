"""Giving each custom node its two lives: a function body for any runtime, plugin attributes for TensorRT.

1. A node of domain `infsa` gets `plugin_namespace` and `plugin_version`, by which TensorRT finds its plugin. One whose
   sizes the plugin does not take says so in its metadata: an engine builds it from its function body.
2. The function body of each op in use becomes a model-local function; it declares the plugin attributes too.
3. An optional output that is read nowhere in the model is dropped from the op's nodes and from its body.
4. A node of an op with optional outputs says in `plugin_outputs` how many it has: TensorRT does not tell its plugin.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx import FunctionProto, ModelProto, helper, inliner
from onnx_ir.passes.common import RemoveUnusedNodesPass

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, PLUGIN_ATTRIBUTES, VERSION, Op

PLUGIN_OUTPUTS = "plugin_outputs"
BODY_KEY = "infsa_deploy.body"  # metadata of a node: why its plugin cannot run it


def attach_ops(model: ir.Model) -> ir.Model:
    """Attach bodies and plugin attributes; ModelError for a node of the domain that is no op of ours."""
    nodes = [node for node in model.graph.all_nodes() if node.domain == DOMAIN]
    _check_known(nodes)
    for op in OPS:
        calls = [node for node in nodes if node.op_type == op.contract.name]
        if not calls:
            continue
        function = ir.serde.deserialize_function(function_body(op))
        model.functions[function.identifier()] = function
        model.opset_imports[DOMAIN] = VERSION
        for node in calls:
            why = _plugin_refuses(op, node)
            if why:
                node.metadata_props[BODY_KEY] = why
            node.attributes.update({name: ir.AttrString(name, value) for name, value in PLUGIN_ATTRIBUTES.items()})
        _drop_unread_outputs(op, calls, function)
        if any(spec.optional for spec in op.contract.outputs):
            function.attributes[PLUGIN_OUTPUTS] = ir.Attr(PLUGIN_OUTPUTS, ir.AttributeType.INT, None)
            for node in calls:
                node.attributes[PLUGIN_OUTPUTS] = ir.AttrInt64(PLUGIN_OUTPUTS, len(node.outputs))
    RemoveUnusedNodesPass()(model)
    return model


def function_body(op: Op) -> FunctionProto:
    """Give the op's function body as ONNX, in one piece, with the attributes a node carries."""
    body: FunctionProto = op.body.to_function_proto()
    parts = [part.to_function_proto() for part in op.body.function_ir.get_called_functions().values()]
    if parts:
        imports = [helper.make_opsetid(each.domain, each.version) for each in body.opset_import]
        model = ModelProto(functions=[body, *parts], opset_import=imports, ir_version=10)
        (body,) = inliner.inline_selected_functions(model, [(part.domain, part.name) for part in parts]).functions
    body.attribute.extend(PLUGIN_ATTRIBUTES)
    return body


def _plugin_refuses(op: Op, node: ir.Node) -> str:
    """Say which limit of the op's plugin the node's sizes break; empty where they break none."""
    sizes: dict[str, tuple[int, ...]] = {}
    for spec, value in zip(op.contract.inputs, node.inputs, strict=True):
        if value is None or value.shape is None:
            return ""
        sizes[spec.name] = tuple(dim if isinstance(dim, int) else 1 for dim in value.shape)
    axes = op.contract.bind_axes(sizes, node.attributes["heads"].as_int() if "heads" in node.attributes else 1)
    return next(filter(None, (limit.broken_by(axes) for limit in op.contract.plugin_limits)), "")


def _drop_unread_outputs(op: Op, calls: list[ir.Node], function: ir.Function) -> None:
    for index in reversed(range(len(op.contract.outputs))):
        outputs = [node.outputs[index] for node in calls if len(node.outputs) > index]
        read = any(value.uses() or value.is_graph_output() for value in outputs)
        if read or not op.contract.outputs[index].optional:
            return
        for node in calls:
            node.resize_outputs(min(len(node.outputs), index))
        del function.outputs[index]


def _check_known(nodes: list[ir.Node]) -> None:
    known = sorted(op.contract.name for op in OPS)
    for node in nodes:
        if node.op_type not in known:
            raise ModelError(
                f"node {node.name!r} has unknown op {DOMAIN}.{node.op_type}.",
                f"this version knows {', '.join(known)}.",
                "export the model again with this version.",
            )
