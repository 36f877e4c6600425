"""Models of one node, run by ONNX Runtime: a custom op with its body attached, or a part of a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import onnxscript
import torch
from onnx import TensorProto, helper

from infsa_deploy.graph.passes.attach_ops import function_body
from infsa_deploy.ops.contract import DOMAIN, PLUGIN_ATTRIBUTES, VERSION, Op

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
}


def run_body(op: Op, inputs: Mapping[str, torch.Tensor], attributes: Mapping[str, float]) -> list[torch.Tensor]:
    """Run the op's ONNX body on `inputs`; tensors go in and out in their own type, as float32 at the boundary."""
    found = _run(body_model(op, inputs, attributes), fed(inputs))
    return [torch.from_numpy(array) for array in found]


def fed(inputs: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """What body_model takes for these inputs."""
    return {f"{name}_in": np.asarray(tensor.float()) for name, tensor in inputs.items()}


def body_model(op: Op, inputs: Mapping[str, torch.Tensor], attributes: Mapping[str, float]) -> onnx.ModelProto:
    """The op as a model of one node with its body, for inputs of these shapes and this type."""
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
    return model


def run_part(part: onnxscript.OnnxFunction, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a function that op bodies are made of, on its inputs in order."""
    proto = part.to_function_proto()
    node = helper.make_node(proto.name, proto.input, proto.output, domain=proto.domain)
    given = dict(zip(proto.input, inputs, strict=True))
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output]  # of any type and rank
    called = [other.to_function_proto() for other in part.function_ir.get_called_functions().values()]
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
    graph = helper.make_graph([node], "part", values, outputs)
    model = helper.make_model(graph, opset_imports=imports, functions=[proto, *called], ir_version=10)
    return _run(model, given)


def _run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))
