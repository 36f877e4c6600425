"""The code for TensorRT proper, driven as far as a stand-in module allows (see conftest.FAKE_TENSORRT)."""

from __future__ import annotations

import pytest

from infsa_deploy.engine.builder.compiler import check_version
from infsa_deploy.engine.flavor import TENSORRT, TENSORRT_RTX, choose
from infsa_deploy.errors import BuildError, HostError, UsageError
from infsa_deploy.files import sha256
from tests.engine.conftest import A100

pytestmark = pytest.mark.usefixtures("fake_tensorrt")


def test_auto_takes_tensorrt_beside_a_gpu_and_rtx_without():
    assert choose("auto", A100) is TENSORRT
    assert choose("auto", None) is TENSORRT_RTX
    assert choose("tensorrt-rtx", A100) is TENSORRT_RTX


def test_tensorrt_needs_a_gpu():
    with pytest.raises(HostError, match="TensorRT cannot build here") as failed:
        choose("tensorrt", None)
    assert "--backend tensorrt-rtx" in failed.value.fix


@pytest.mark.parametrize(
    ("version", "good"), [("10.12.0", False), ("10.13.2.6", True), ("11.0.0", True), ("9.9", False)]
)
def test_oldest_version(version, good):
    if good:
        check_version(TENSORRT, version)
    else:
        with pytest.raises(HostError, match="too old"):
            check_version(TENSORRT, version)


def test_build_for_the_gpu_present(exported, build):
    record = build(exported("linear"), plugins=False)
    assert (record.flavour, record.flavour_version) == ("tensorrt", "11.0.0.114")
    assert (record.targets, record.built_on) == (("sm80",), A100)


def test_target_that_is_not_the_gpu_present(exported, build):
    with pytest.raises(UsageError, match="TensorRT cannot build for sm90 here") as failed:
        build(exported("linear"), plugins=False, targets=("sm90",))
    assert failed.value.why == "it knows sm80."


@pytest.mark.usefixtures("parser_alias")
def test_plugin_layers_are_counted_in_the_engine(exported, build, double, fake_tensorrt, left_over):
    assert build(exported("linear"), plugin_library=double).plugins.proof == "engine"
    fake_tensorrt.write_text(fake_tensorrt.read_text().replace('["PluginV3"] * 4', '["PluginV3"] * 3 + ["gemm"]'))
    (fake_tensorrt.parent.parent.parent / "m.engine").unlink()
    with pytest.raises(BuildError, match="3 of 4 infsa nodes are plugin layers in the engine"):
        build(exported("linear"), plugin_library=double)
    assert left_over() == ["m.engine.json"]


def test_timing_cache_is_made_and_recorded(exported, build, tmp_path):
    cache = tmp_path / "cache"
    assert build(exported("linear"), plugins=False, timing_cache=cache).timing_cache_sha256 == sha256(cache)
    assert cache.stat().st_size > 0


def test_a_timing_cache_that_cannot_be_written_is_told_before_the_build(exported, build, tmp_path, left_over):
    with pytest.raises(UsageError, match="cannot write") as failed:
        build(exported("linear"), plugins=False, timing_cache=tmp_path / "nowhere" / "cache")
    assert "mkdir" in failed.value.fix
    assert left_over() == []


def test_foreign_timing_cache(exported, build, tmp_path, left_over):
    cache = tmp_path / "cache"
    cache.write_bytes(b"of another program" * 9)
    with pytest.raises(BuildError, match="is stale or foreign") as failed:
        build(exported("linear"), plugins=False, timing_cache=cache)
    assert "timing cache" in failed.value.why.lower()
    assert failed.value.fix.startswith("delete it")
    assert left_over() == []
    assert cache.read_bytes() == b"of another program" * 9


def test_stale_timing_cache(exported, build, tmp_path, fake_tensorrt):
    fake_tensorrt.write_text(
        fake_tensorrt.read_text().replace(
            "        return config\n",
            "        return Refusing(config)\n\n"
            "class Refusing:\n"
            "    def __init__(self, config): object.__setattr__(self, 'config', config)\n"
            "    def __getattr__(self, name): return getattr(self.config, name)\n"
            "    def __setattr__(self, name, value): setattr(self.config, name, value)\n"
            "    def set_timing_cache(self, cache, ignore_mismatch): return ignore_mismatch\n",
            1,
        )
    )
    with pytest.raises(BuildError, match="is stale or foreign") as failed:
        build(exported("linear"), plugins=False, timing_cache=tmp_path / "cache")
    assert "another GPU model or TensorRT version" in failed.value.why


def test_hardware_compatible_is_recorded(exported, build):
    assert build(exported("linear"), plugins=False, hardware_compatible=True).options == {"hardware_compatible": True}
