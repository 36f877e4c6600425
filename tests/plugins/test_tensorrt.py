"""Real TensorRT: the registry of TensorRT 11, and engines for SM 80 from our ONNX by TensorRT-RTX."""

from __future__ import annotations

import importlib.util
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.ops.contract import DOMAIN, VERSION
from tests.plugins import cases, rtx
from tests.plugins.worker import Case

TYPES = {
    torch.float32: (TensorProto.FLOAT, "FLOAT"),
    torch.float16: (TensorProto.FLOAT16, "HALF"),
    torch.bfloat16: (TensorProto.BFLOAT16, "BF16"),
}
CASES = {
    "NeumannAttention": lambda dtype: cases.neumann(dtype, 2, 50, 2, 24, hops=2),
    "EnergyPool": lambda dtype: cases.energy(dtype, 2, 50, 2, 24, 40),
    "CentralityPool": lambda dtype: cases.centrality(dtype, 2, 50, 2, 40),
}
DYNAMIC = {"B": 3, "N": 100}  # the largest sizes


@pytest.fixture(scope="module")
def build(built) -> Iterator[Callable[..., rtx.Engine]]:
    """Call rtx.build in a process of its own: what goes wrong inside TensorRT may end the process."""
    if not importlib.util.find_spec("tensorrt_rtx"):
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx-cu13")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda *arguments: pool.submit(rtx.build, built.folder, *arguments).result()


def single_node(
    op: str, dtype: torch.dtype, dynamic: bool, outputs: int | None = None, case: Case | None = None
) -> tuple[bytes, rtx.Shapes]:
    """A model of one bare node, given its body and attributes by the export's last pass, and its profile."""
    case, contract = case or CASES[op](dtype), cases.OPS[op].contract
    sizes = dict(zip(contract.inputs[0].axes, case.inputs[0].shape, strict=True))
    names = [spec.name for spec in contract.outputs][:outputs]
    values = [
        helper.make_tensor_value_info(
            spec.name,
            TYPES[dtype][0],
            [axis if dynamic and axis in DYNAMIC else size for axis, size in zip(spec.axes, tensor.shape, strict=True)],
        )
        for spec, tensor in zip(contract.inputs, case.inputs, strict=True)
    ]
    profile = {
        spec.name: tuple(
            tuple(pick(axis, size) for axis, size in zip(spec.axes, tensor.shape, strict=True))
            for pick in (lambda a, s: 1 if a in DYNAMIC else s, lambda a, s: s, lambda a, s: DYNAMIC.get(a, s))
        )
        for spec, tensor in zip(contract.inputs, case.inputs, strict=True)
    }
    node = helper.make_node(op, [value.name for value in values], names, domain=DOMAIN, **case.fields)
    results = [helper.make_tensor_value_info(name, TYPES[dtype][0], None) for name in names]
    graph = helper.make_graph([node], "single", values, results)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, VERSION)]
    model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=imports, ir_version=10))
    assert sizes["N"] == 50
    return ir.to_proto(attach_ops(model)).SerializeToString(), profile if dynamic else {}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("op", CASES)
def test_rtx_builds_each_op_as_a_plugin(build, built, op: str, dtype: torch.dtype, dynamic: bool) -> None:
    model, profile = single_node(op, dtype, dynamic)
    engine = build(model, built.plugins, profile)
    assert engine.layers == ["PLUGIN_V3"]
    assert engine.types == [TYPES[dtype][1]] * len(engine.types)
    expected = [list(shape) for shape in CASES[op](dtype).shapes]
    if not dynamic:
        assert engine.outputs == [tuple(shape) for shape in expected]
    else:
        assert all(shape[0] == -1 for shape in engine.outputs)
        assert [len(shape) for shape in engine.outputs] == [len(shape) for shape in expected]
    assert engine.bytes > built.plugins.stat().st_size, "the plugin library is not inside"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rtx_builds_the_first_rows_of_neumann_attention(build, built, dynamic: bool) -> None:
    case = cases.neumann(torch.float16, 2, 50, 2, 24, hops=1, rows=3)
    model, profile = single_node("NeumannAttention", torch.float16, dynamic, case=case)
    engine = build(model, built.plugins, profile)
    assert engine.layers == ["PLUGIN_V3"]
    assert engine.bytes
    assert engine.outputs == [(-1 if dynamic else 2, 3, 48)]


def test_rtx_builds_centrality_pool_without_its_optional_output(build, built) -> None:
    model, _ = single_node("CentralityPool", torch.float16, False, outputs=2)
    engine = build(model, built.plugins, {})
    assert engine.layers == ["PLUGIN_V3"]
    assert engine.outputs == [(2, 2, 40), (2, 2)]
    assert engine.bytes


def test_rtx_falls_back_to_the_body_without_the_library(build) -> None:
    """Why every build counts its plugin layers."""
    model, _ = single_node("EnergyPool", torch.float16, False)
    engine = build(model, None, {})
    assert "PLUGIN_V3" not in engine.layers
    assert len(engine.layers) > 5


def test_rtx_says_why_a_shape_is_refused(build, built) -> None:
    """One head of 1050 channels: the message names the limit, and no engine comes out."""
    model = onnx.load_from_string(single_node("NeumannAttention", torch.float16, False)[0])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 3150
    next(a for a in model.graph.node[0].attribute if a.name == "heads").i = 1
    model.graph.output[0].type.tensor_type.ClearField("shape")
    engine = build(model.SerializeToString(), built.plugins, {})
    assert engine.bytes == 0
    assert "a head dimension that is a multiple of 8 up to 128" in engine.log


REGISTRY = """
import sys
import numpy as np
import tensorrt_lean as trt
registry = trt.get_plugin_registry()
assert registry.load_library(sys.argv[1])
for name in ("NeumannAttention", "EnergyPool", "CentralityPool"):
    creator = registry.get_creator(name, "1", "infsa")
    print(creator.name, creator.plugin_version, creator.plugin_namespace)
fields = trt.PluginFieldCollection([
    trt.PluginField("heads", np.array([int(sys.argv[2])], np.int32), trt.PluginFieldType.INT32),
    trt.PluginField("eps", np.array([1e-6], np.float32), trt.PluginFieldType.FLOAT32),
])
print(registry.get_creator("EnergyPool", "1", "infsa").create_plugin("x", fields, trt.TensorRTPhase.BUILD))
"""


def _registry(built, heads: int) -> subprocess.CompletedProcess[str]:
    if not importlib.util.find_spec("tensorrt_lean"):
        pytest.skip("needs TensorRT's lean runtime: pip install tensorrt-lean-cu13")
    command: list[Any] = [sys.executable, "-c", REGISTRY, built.plugins, heads]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def test_tensorrt_11_registers_the_library(built) -> None:
    result = _registry(built, 3)
    assert result.returncode == 0, result.stderr
    *lines, plugin = result.stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [[name, "1", "infsa"] for name in CASES]
    assert "IPluginV3" in plugin


def test_tensorrt_11_gets_no_plugin_from_bad_fields(built) -> None:
    result = _registry(built, 0)
    assert result.stdout.splitlines()[-1] == "None"
    assert "EnergyPool: field heads = 0 is out of range [1, 1024]." in result.stdout + result.stderr


@pytest.mark.parametrize(("variant", "plugins"), [("linear", 4), ("pure", 2)])
def test_rtx_builds_exported_models(build, built, shared_export, variant: str, plugins: int) -> None:
    """Two layers: two pools a layer of the linear variant, one attention a layer of the pure one."""
    path = shared_export(variant)
    model = ir.load(path)
    name = model.graph.inputs[0].name
    image = tuple(int(size) for size in model.graph.inputs[0].shape[1:])
    profile = {name: tuple((batch, *image) for batch in (1, 2, 4))}
    engine = build(path.read_bytes(), built.plugins, profile)
    assert engine.layers.count("PLUGIN_V3") == plugins
    assert engine.bytes
