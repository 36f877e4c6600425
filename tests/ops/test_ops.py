"""What must hold for every op in the list."""

from __future__ import annotations

import pytest

from infsa_deploy.errors import UsageError
from infsa_deploy.export.trace import onnx_schema
from infsa_deploy.graph.passes.attach_ops import function_body
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import PLUGIN_ATTRIBUTES

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.contract.name)


@each_op
def test_body_has_the_contracts_interface(op):
    body = function_body(op)
    assert body.name == op.contract.name
    assert list(body.input) == [spec.name for spec in op.contract.inputs]
    assert len(body.output) == len(op.contract.outputs)
    defaults = {spec.name: spec.default for spec in op.contract.attributes if spec.default is not None}
    assert {attribute.name: attribute.i for attribute in body.attribute_proto} == defaults
    names = {spec.name for spec in op.contract.attributes} - defaults.keys()
    assert set(body.attribute) == names | set(PLUGIN_ATTRIBUTES)


@each_op
def test_schema_has_the_contracts_interface(op):
    schema = onnx_schema(op.contract)
    assert [p.name for p in schema.inputs] == [spec.name for spec in op.contract.inputs]
    assert [p.name for p in schema.outputs] == [spec.name for spec in op.contract.outputs]
    assert set(schema.attributes) == {spec.name for spec in op.contract.attributes}


@each_op
def test_missing_and_unknown_attributes_are_refused(op):
    with pytest.raises(UsageError, match="exactly"):
        op.contract.check_attributes({})
    values = {spec.name: spec.maximum for spec in op.contract.attributes}
    with pytest.raises(UsageError, match="exactly"):
        op.contract.check_attributes({**values, "temperature": 1.0})
    with pytest.raises(UsageError, match="eps"):
        op.contract.check_attributes({**values, "eps": True})


def test_axes_are_solved_from_shapes():
    contract = OPS[0].contract
    assert contract.bind_axes({"qkv": (2, 197, 3 * 16 * 64)}, 16) == {"H": 16, "B": 2, "N": 197, "D": 64}
