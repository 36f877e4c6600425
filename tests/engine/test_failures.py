"""What goes wrong with engines, and what is said: one sentence, its cause and its mend, and no file left behind."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization import quantize_dynamic

from infsa_deploy.config import EngineConfig, ExportConfig
from infsa_deploy.engine.build import Listener, build_engine
from infsa_deploy.engine.flavor import TENSORRT_RTX
from infsa_deploy.engine.from_export import build as build_retyped
from infsa_deploy.errors import BuildError, HostError, ModelError, UsageError
from infsa_deploy.export.pipeline import export_reference
from tests.engine.conftest import _folder
from tests.engine.quantized import quantized


@contextmanager
def _tmpfs(folder: Path, options: str):
    """A small file system of its own at `folder`; skips the test where mounting is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_library_of_another_namespace(exported, build, compile_double, left_over):
    library = compile_double(PLUGIN_NAMESPACE='"other"')
    with pytest.raises(BuildError, match="4 of 4 infsa nodes find no plugin") as failed:
        build(exported("linear"), plugin_library=library)
    assert "infsa::EnergyPool::1" in failed.value.why
    assert "other::EnergyPool::1" in failed.value.why
    assert left_over() == []


def test_library_of_another_version(exported, build, compile_double, left_over):
    with pytest.raises(BuildError, match="2 of 2 infsa nodes find no plugin") as failed:
        build(exported("pure"), plugin_library=compile_double(PLUGIN_VERSION='"2"'))
    assert "asks for infsa::NeumannAttention::1" in failed.value.why
    assert "has infsa::NeumannAttention::2" in failed.value.why
    assert left_over() == []


def test_library_that_does_not_know_an_attribute(exported, build, compile_double, left_over):
    with pytest.raises(BuildError, match=r"libdouble\.so does not know rows of NeumannAttention\.") as failed:
        build(exported("pure"), plugin_library=compile_double(WITHOUT_ROWS="1"))
    assert "its NeumannAttention has heads, rho, hops, eps." in failed.value.why
    assert "--plugins off" in failed.value.fix
    assert left_over() == []


def test_an_attribute_that_the_parser_reads_itself_is_no_field(exported, build, double):
    path = exported("pure")
    model = onnx.load(path)
    for node in model.graph.node:
        if node.domain == "infsa":
            node.attribute.append(helper.make_attribute("tensorrt_plugin_shape_input_indices", [], attr_type=7))  # INTS
    onnx.save(model, path)
    assert build(path, plugin_library=double).plugins.mode == "plugins"


def test_nodes_that_name_no_plugin_do_not_fall_back_to_bodies(exported, build, double, left_over):
    path = exported("linear")
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [attribute for attribute in node.attribute if not attribute.name.startswith("plugin_")]
        del node.attribute[:]
        node.attribute.extend(kept)
    onnx.save(model, path)
    with pytest.raises(BuildError, match="4 of 4 infsa nodes") as failed:
        build(path, plugin_library=double)
    assert "would take the function body" in failed.value.why
    assert left_over() == []


def test_missing_library(exported, build, tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        build(exported("linear"), plugin_library=tmp_path / "missing.so")


def test_no_library_installed(exported, build, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "infsa_plugins", None)
    with pytest.raises(HostError, match="plugin library is not installed") as failed:
        build(exported("linear"))
    assert "--plugins off" in failed.value.fix


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"no library, but long enough to be one" * 9])
def test_library_that_is_no_elf_file(exported, build, tmp_path, content):
    library = tmp_path / "lib.so"
    library.write_bytes(content)
    with pytest.raises(UsageError, match="is no plugin library"):
        build(exported("linear"), plugin_library=library)


def test_elf_library_without_plugins(exported, build, tmp_path, left_over):
    library = tmp_path / "libempty.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library], input="int x;", text=True, check=True)
    with pytest.raises(BuildError, match=r"cannot load libempty\.so|find no plugin in libempty\.so"):
        build(exported("linear"), plugin_library=library)
    assert left_over() == []


def test_library_for_another_sm(exported, build, double, tmp_path):
    library = _with_cubin(double, tmp_path, "sm_80")
    with pytest.raises(BuildError, match="no GPU code for sm120") as failed:
        build(exported("linear"), plugin_library=library, targets=("sm80", "sm120"))
    assert failed.value.why == "it has code for sm80."
    assert build(exported("linear"), plugin_library=library, targets=("sm80", "sm86")).targets == ("sm80", "sm86")


def _with_cubin(library: Path, folder: Path, arch: str) -> Path:
    """A copy of the library with an empty kernel for `arch` after its end, as an embedded one would lie in it."""
    ptx = folder / "k.ptx"
    ptx.write_text(f".version 8.0\n.target {arch}\n.address_size 64\n.visible .entry k() {{ ret; }}\n")
    ptxas = _folder("triton") / "backends" / "nvidia" / "bin" / "ptxas"
    subprocess.run([ptxas, "-arch", arch, ptx, "-o", folder / "k.cubin"], check=True)
    copy = folder / "libwithcode.so"
    copy.write_bytes(library.read_bytes() + (folder / "k.cubin").read_bytes())
    return copy


def test_fp16_asked_and_fp32_found(exported, build, double, left_over):
    with pytest.raises(BuildError, match="fp16 was asked, but 18 of 18 products multiply in another type") as failed:
        build(exported("linear"), plugin_library=double, precision="fp16")
    assert "18 fp32" in failed.value.why
    assert left_over() == []


def test_int8_asked_and_nothing_quantized(exported, build, double):
    with pytest.raises(BuildError, match="none of 10 products is quantized"):
        build(exported("pure"), plugin_library=double, precision="int8")


def test_int8_asked_and_the_rest_left_in_fp32(exported, build, double, left_over):
    with pytest.raises(BuildError, match="int8 was asked, but 2 of 18 products multiply in another type") as failed:
        build(quantized(exported("linear")), plugin_library=double, precision="int8")
    assert "2 fp32, 16 int8" in failed.value.why
    assert left_over() == []


@pytest.mark.parametrize("precision", ["fp16", None])
def test_tiles_are_for_another_runtime(tiny, tmp_path, double, precision, left_over):
    reference = tiny("linear", image_size=(64, 64))
    export_reference(reference, tmp_path / "tiled.onnx", ExportConfig(tile_tokens=16))
    config = EngineConfig(precision=precision, plugin_library=double)
    with pytest.raises(ModelError, match=r"works on its tokens in tiles of 16") as failed:
        build_retyped(tmp_path / "tiled.onnx", tmp_path / "m.engine", config, Listener())
    assert failed.value.fix == "export it again without --tile-tokens."
    assert left_over() == []


@pytest.mark.parametrize("precision", ["int8", None])
def test_dynamic_int8_is_for_another_runtime(exported, tmp_path, double, precision):
    model = exported("linear")
    quantize_dynamic(model, tmp_path / "dynamic.onnx")
    config = EngineConfig(precision=precision, plugin_library=double)
    with pytest.raises(ModelError, match="is quantised dynamically") as failed:
        build_retyped(tmp_path / "dynamic.onnx", tmp_path / "m.engine", config, Listener())
    assert "--int8 --calibration" in failed.value.fix


def test_what_the_machine_lacks_is_told_before_the_model_is_retyped(exported, tmp_path):
    told: list[str] = []
    config = EngineConfig(precision="fp16", plugin_library=tmp_path / "missing.so")
    with pytest.raises(UsageError, match="does not exist"):
        build_retyped(exported("linear"), tmp_path / "m.engine", config, Listener(phase=told.append, note=told.append))
    assert told == []


def test_min_larger_than_opt(exported, build):
    shapes = {"min_shapes": {"image": (4, 3, 16, 24)}, "opt_shapes": {"image": (2, 3, 16, 24)}}
    with pytest.raises(UsageError, match="min shape of 'image' is larger than its opt shape"):
        build(exported("linear"), plugins=False, **shapes)


def test_unsupported_op_is_named_with_its_node(build, tmp_path):
    node = helper.make_node("Det", ["x"], ["y"], name="volume")
    graph = helper.make_graph(
        [node],
        "elsewhere",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "d.onnx")
    with pytest.raises(ModelError, match="cannot parse node 'volume', op Det"):
        build(tmp_path / "d.onnx")


def test_target_that_rtx_does_not_know(exported, build):
    with pytest.raises(UsageError, match="TensorRT-RTX cannot build for sm90") as failed:
        build(exported("linear"), targets=("sm80", "sm90"))
    assert "sm120" in failed.value.why
    assert "--backend tensorrt" in failed.value.fix


@pytest.mark.parametrize("option", ["version_compatible", "hardware_compatible"])
def test_options_that_rtx_has_not(exported, build, option):
    with pytest.raises(UsageError, match=f"has no --{option.replace('_', '-')}"):
        build(exported("linear"), **{option: True})


@pytest.mark.parametrize("option", ["strip", "refit"])
def test_options_that_need_a_gpu(exported, build, monkeypatch, option):
    monkeypatch.setattr("infsa_deploy.engine.build.find_gpu", lambda: None)
    with pytest.raises(HostError, match=f"--{option} needs a GPU"):
        build(exported("linear"), **{option: True})


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_files_that_are_no_model(build, tmp_path, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"does not exist|is empty|is no ONNX model"):
        build(path)


def test_truncated_model(exported, build, double, left_over):
    path = exported("linear")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ModelError):
        build(path, plugin_library=double)
    assert left_over() == []


@pytest.mark.parametrize("precision", ["fp16", None])
@pytest.mark.parametrize(("kept", "message"), [(None, "does not exist"), (100, "is cut off")])
def test_weights_kept_apart_that_are_not_there(exported, tmp_path, double, left_over, precision, kept, message):
    model = exported("linear")
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="w.data", size_threshold=0)
    weights = (tmp_path / "w.data").read_bytes()
    (tmp_path / "w.data").unlink()
    if kept is not None:
        (tmp_path / "w.data").write_bytes(weights[:kept])
    config = EngineConfig(precision=precision, plugin_library=double)
    with pytest.raises(ModelError, match=rf"w\.data, which holds weights of linear\.onnx, {message}") as failed:
        build_retyped(model, tmp_path / "m.engine", config, Listener())
    assert "copy w.data along" in failed.value.fix
    assert left_over() == []


def test_a_parser_that_aborts_is_an_error_not_a_dead_process(exported, build, double, monkeypatch, left_over):
    monkeypatch.setattr("infsa_deploy.engine.builder.child.alias_folder", lambda flavor, folder: None)
    with pytest.raises(BuildError, match="ended by SIGABRT") as failed:
        build(exported("linear"), plugin_library=double)
    assert "terminate called" in failed.value.why
    assert left_over() == []


def test_read_only_output(exported, double, tmp_path):
    model = exported("linear")
    with _tmpfs(tmp_path / "ro", "ro,size=1m") as folder, pytest.raises(HostError, match="cannot write"):
        build_engine(model, folder / "m.engine", EngineConfig(plugin_library=double))


def test_full_disk_leaves_nothing(exported, double, tmp_path):
    model = exported("linear")
    with _tmpfs(tmp_path / "full", "size=512k") as folder:
        with pytest.raises(HostError, match="cannot write") as failed:
            build_engine(model, folder / "m.engine", EngineConfig(plugin_library=double))
        assert "disk is full" in failed.value.why
        assert [path.name for path in folder.iterdir()] == ["m.engine.log"]


def test_no_room_for_the_retyped_copy(exported, double, tmp_path, monkeypatch, left_over):
    model = exported("linear")
    with _tmpfs(tmp_path / "temporary", "size=8k") as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        config = EngineConfig(precision="fp16", plugin_library=double)
        with pytest.raises(HostError, match="cannot write") as failed:
            build_retyped(model, tmp_path / "m.engine", config, Listener())
        assert str(folder) in failed.value.what
        assert "disk is full" in failed.value.why
        assert list(folder.iterdir()) == []
    assert left_over() == []


@pytest.mark.parametrize("phase", ["parsing", "building"])
def test_interrupting_a_build_leaves_nothing(exported, build, double, left_over, phase):
    def interrupt(text: str) -> None:
        if text.startswith(phase):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(exported("linear"), plugin_library=double, listener=Listener(phase=interrupt))
    assert left_over() == []


def test_no_builder_installed(exported, build, monkeypatch):
    monkeypatch.setattr("infsa_deploy.engine.flavor.importlib.util.find_spec", lambda name: None)
    with pytest.raises(HostError, match="no builder") as failed:
        build(exported("linear"))
    assert TENSORRT_RTX.install in failed.value.fix


def test_graph_without_body_or_plugin(build, tmp_path):
    node = helper.make_node("Unheard", ["x"], ["y"], name="n", domain="elsewhere")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("elsewhere", 1)]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [4], np.zeros(4))]
    graph = helper.make_graph([node], "g", value[:1], value[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "u.onnx")
    with pytest.raises(ModelError, match="cannot parse node 'n', op Unheard"):
        build(tmp_path / "u.onnx")
