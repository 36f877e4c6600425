"""Bodies and plugin attributes, case by case."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.passes.attach_ops import attach_ops


def model_with(op_type: str, outputs: int, *, exposed: int) -> ir.Model:
    x, u, c = (
        ir.val(name, ir.DataType.FLOAT, shape) for name, shape in (("x", [1, 4, 8]), ("u", [1, 2, 8]), ("c", [1, 2]))
    )
    node = ir.Node("infsa", op_type, [x, u, c], [ir.AttrFloat32("eps", 1e-6)], num_outputs=outputs)
    for index, value in enumerate(node.outputs):
        value.name = f"y{index}"
    graph = ir.Graph([x, u, c], node.outputs[:exposed], nodes=[node], opset_imports={"": 20}, name="g")
    return ir.Model(graph, ir_version=10)


def test_case_1_and_2_attributes_and_body():
    model = attach_ops(model_with("CentralityPool", 3, exposed=3))
    (node,) = model.graph
    assert node.attributes["plugin_namespace"].value == "infsa"
    assert node.attributes["plugin_version"].value == "1"
    ((identifier, function),) = model.functions.items()
    assert identifier[:2] == ("infsa", "CentralityPool")
    assert len(function.outputs) == 3
    assert model.opset_imports["infsa"] == 1


def test_case_3_an_unread_optional_output_goes():
    model = attach_ops(model_with("CentralityPool", 3, exposed=2))
    (node,) = model.graph
    (function,) = model.functions.values()
    assert len(node.outputs) == len(function.outputs) == 2
    produced = {output.name for inner in function for output in inner.outputs}
    assert {value.name for value in function.outputs} <= produced
    assert all(inner.outputs[0].uses() or inner.outputs[0] in function.outputs for inner in function)


def test_unknown_op_of_the_domain():
    with pytest.raises(ModelError, match=r"infsa\.Mystery"):
        attach_ops(model_with("Mystery", 1, exposed=1))
