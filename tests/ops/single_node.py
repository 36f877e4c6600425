"""A model of one custom node, with its body attached, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

from infsa_deploy.export.attach_ops import function_body
from infsa_deploy.ops.contract import DOMAIN, PLUGIN_ATTRIBUTES, VERSION, Op

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
}


def run_body(op: Op, inputs: Mapping[str, torch.Tensor], attributes: Mapping[str, float]) -> list[torch.Tensor]:
    """Run the op's ONNX body on `inputs`; tensors go in and out in their own type, as float32 at the boundary."""
    kind = TYPES[next(iter(inputs.values())).dtype]
    names = [spec.name for spec in op.contract.inputs]
    outputs = [spec.name for spec in op.contract.outputs]
    nodes = [helper.make_node("Cast", [f"{name}_in"], [name], to=kind) for name in names]
    nodes.append(helper.make_node(op.contract.name, names, outputs, domain=DOMAIN, **attributes, **PLUGIN_ATTRIBUTES))
    nodes += [helper.make_node("Cast", [name], [f"{name}_out"], to=TensorProto.FLOAT) for name in outputs]
    graph = helper.make_graph(
        nodes,
        "single",
        [helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, list(inputs[name].shape)) for name in names],
        [
            helper.make_tensor_value_info(f"{spec.name}_out", TensorProto.FLOAT, [None] * len(spec.axes))
            for spec in op.contract.outputs
        ],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function_body(op)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {f"{name}_in": np.asarray(inputs[name].float()) for name in names}
    return [torch.from_numpy(array) for array in session.run(None, feeds)]
