"""The parts of a build that need no builder: memory, bodies, proof, the library as a file, the sidecar's checks."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from infsa_deploy.engine import plugin_library, sidecar
from infsa_deploy.engine.build import Listener
from infsa_deploy.engine.builder.bodies import expand_bodies
from infsa_deploy.engine.builder.memory import Step, activation_bytes
from infsa_deploy.engine.builder.proof import check_plugins, check_precision, plan_names_plugins
from infsa_deploy.errors import BuildError, HostError, ModelError
from infsa_deploy.records.engine import Gpu
from tests.engine.conftest import A100


def test_memory_of_a_chain_with_a_residual():
    """x (10) stays for the sum; the wide tensor (40) is activated in place, and ends before the sum."""
    steps = [
        Step("CONSTANT", (), ("w",)),
        Step("MATRIX_MULTIPLY", ("x", "w"), ("wide",)),
        Step("SHUFFLE", ("wide",), ("view",)),
        Step("ACTIVATION", ("view",), ("active",)),
        Step("MATRIX_MULTIPLY", ("active", "w"), ("narrow",)),
        Step("ELEMENTWISE", ("x", "narrow"), ("y",)),
    ]
    sizes = {"x": 10, "w": 1000, "wide": 40, "view": 40, "active": 40, "narrow": 10, "y": 10}
    assert activation_bytes(steps, sizes, ["y"]) == 10 + 40 + 10  # while the second product reads wide, writes narrow
    assert activation_bytes(steps, sizes, ["y", "active"]) == 10 + 40 + 10
    assert activation_bytes(steps, sizes, ["y", "wide"]) == 10 + 40 + 40 + 10  # no longer in place


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_expanded_bodies_compute_the_same(exported, hops, rng):
    model = onnx.load(exported("pure", hops=hops, depth=1))
    expanded = expand_bodies(model)
    assert not expanded.functions
    assert not [node for node in expanded.graph.node if node.op_type in ("Loop", "If", "Scan") or node.domain]
    onnx.checker.check_model(expanded)
    image = rng.standard_normal((2, 3, 16, 24)).astype(np.float32)
    np.testing.assert_array_equal(_unoptimised(model, image), _unoptimised(expanded, image))


def _unoptimised(model: onnx.ModelProto, image: np.ndarray) -> np.ndarray:
    """The output where each node runs as it stands, so that equal nodes round equally."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"image": image})[0]


def test_proof_of_plugins_and_types():
    check_plugins({"a::b::1": 2}, {"a::b::1": 2}, "the engine")
    with pytest.raises(BuildError, match="1 of 2 infsa nodes are plugin layers in the engine") as failed:
        check_plugins({"a::b::1": 2}, {"a::b::1": 1}, "the engine")
    assert failed.value.why == "expected 2 a::b::1; found 1 a::b::1."
    products = [("conv", "fp32"), ("fc", "bf16")]
    check_precision("bf16", products, {"conv"})
    check_precision(None, products, ())
    with pytest.raises(BuildError, match="1 of 2 products") as failed:
        check_precision("bf16", products, ())
    assert "'conv'" in failed.value.why


def test_a_plan_names_its_plugins_outside_the_library(tmp_path):
    library, plan = tmp_path / "lib", tmp_path / "plan"
    library.write_bytes(b"##infsa##EnergyPool##")
    names = ["infsa::EnergyPool::1"]
    for content, named in (
        (b"..infsa..EnergyPool..", True),
        (b".." + library.read_bytes() + b"..", False),
        (b"infsa" + library.read_bytes() + b"EnergyPool", True),
        (b"infsa" + library.read_bytes(), False),
    ):
        plan.write_bytes(content)
        assert plan_names_plugins(plan, names, library) is named


def _cubin(flags: int, abi: int) -> bytes:
    header = bytearray(64)
    header[:4], header[4], header[8] = b"\x7fELF", 2, abi
    struct.pack_into("<H", header, 18, 190)
    struct.pack_into("<I", header, 48, flags)
    return bytes(header)


def test_gpu_code_in_a_library(tmp_path):
    library = tmp_path / "lib.so"
    library.write_bytes(b"\x7fELF" + bytes(60) + _cubin(0x500550, 7) + _cubin(0x6007802, 8) + b"\x7fELF")
    assert plugin_library.gpu_code(library) == ("sm80", "sm120")
    plugin_library.check_targets(library, ("sm80", "sm86", "sm89", "sm121"))
    with pytest.raises(BuildError, match="no GPU code for sm75"):
        plugin_library.check_targets(library, ("sm80", "sm75"))


@pytest.fixture
def engine(exported, build, double, tmp_path):
    record = build(exported("linear"), plugin_library=double)
    return tmp_path / "m.engine", record


def test_sidecar_refuses_what_is_not_the_engine(engine):
    path, record = engine
    sidecar.check_file(path, record)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match="is truncated"):
        sidecar.check_file(path, record)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelError, match="is not the engine its sidecar describes"):
        sidecar.check_file(path, record)


def test_engine_without_a_readable_sidecar(engine, tmp_path):
    path, _ = engine
    beside = sidecar.sidecar_path(path)
    beside.write_text(beside.read_text()[:100])
    with pytest.raises(ModelError, match="cannot be read"):
        sidecar.read_sidecar(path)
    beside.unlink()
    with pytest.raises(ModelError, match="has no sidecar"):
        sidecar.read_sidecar(path)
    with pytest.raises(ModelError, match="does not exist"):
        sidecar.read_sidecar(tmp_path / "missing.engine")


def test_sidecar_refuses_another_gpu_version_or_plugin(engine, compile_double):
    path, record = engine
    sidecar.check_host(path, record, A100, record.flavour_version)
    h100 = Gpu("NVIDIA H100", "sm90", 80 << 30)
    with pytest.raises(HostError, match=r"was built for sm80; this GPU, NVIDIA H100, is sm90") as failed:
        sidecar.check_host(path, record, h100, record.flavour_version)
    assert failed.value.fix == "infsa-deploy build-engine linear.onnx --target sm90"
    with pytest.raises(HostError, match=r"built by tensorrt-rtx .*; 1\.8\.0 is installed"):
        sidecar.check_host(path, record, A100, "1.8.0")
    with pytest.raises(HostError, match="another plugin library"):
        sidecar.check_plugins(path, record, compile_double(PLUGIN_VERSION='"2"'))


def test_sidecar_allows_what_was_built_to_be_compatible(engine):
    path, record = engine
    portable = replace(record, options={"hardware_compatible": True, "version_compatible": True})
    sidecar.check_host(path, portable, Gpu("NVIDIA H100", "sm90", 1), "1.9.0")
    for gpu, version in ((Gpu("T4", "sm75", 1), "1.9.0"), (A100, "2.0.0"), (A100, "1.0.0")):
        with pytest.raises(HostError):
            sidecar.check_host(path, portable, gpu, version)


def test_a_head_size_that_the_plugin_cannot_take_is_built_from_the_body(build, exported, double):
    notes: list[str] = []
    model = exported("linear", embed_dim=24, num_heads=2, depth=1)
    record = build(model, listener=Listener(note=notes.append), plugin_library=double)
    assert list(record.plugins.bodies.values()) == ["D=12, where the GPU plugin takes multiples of 8"]
    assert record.plugins.layers == {"infsa::CentralityPool::1": 1}
    assert any("function body" in note and "number of heads" in note for note in notes)
