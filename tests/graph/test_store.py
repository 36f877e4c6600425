"""Reading models that are missing, damaged, or not ours."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from infsa_deploy.errors import ModelError
from infsa_deploy.graph.store import load_model
from infsa_deploy.records.model import METADATA_KEY


def foreign_model() -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value[0]], [value[1]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def write(path, content: bytes):
    path.write_bytes(content)
    return path


def test_missing(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        load_model(tmp_path / "m.onnx")


def test_empty(tmp_path):
    with pytest.raises(ModelError, match="is empty"):
        load_model(write(tmp_path / "m.onnx", b""))


def test_not_onnx(tmp_path):
    with pytest.raises(ModelError, match="no ONNX model"):
        load_model(write(tmp_path / "m.onnx", b"\x89PNG\r\n\x1a\n and so on"))


def test_truncated(tiny, export, tmp_path):
    path, _ = export(tiny("linear"))
    content = path.read_bytes()
    for kept in (len(content) // 2, len(content) - 1):
        with pytest.raises(ModelError):
            load_model(write(tmp_path / "cut.onnx", content[:kept]))


def test_not_ours(tmp_path):
    with pytest.raises(ModelError, match="not written by infsa-deploy"):
        load_model(write(tmp_path / "m.onnx", foreign_model().SerializeToString()))


def test_metadata_of_another_kind(tmp_path):
    model = foreign_model()
    for text in ("not json", "[1]", '{"variant": "linear"}', '{"colour": 1}'):
        del model.metadata_props[:]
        model.metadata_props.add(key=METADATA_KEY, value=text)
        with pytest.raises(ModelError, match="metadata"):
            load_model(write(tmp_path / "m.onnx", model.SerializeToString()))
