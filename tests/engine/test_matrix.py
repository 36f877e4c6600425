"""Ways to build an engine: attention, image size, type, plugins, targets, on narrow models.

Eight builds hold each pair of choices. What goes wrong in a build comes of one choice or of two that meet, as a type
and a plugin. Every way of all, at full width, is built by scripts/engine_builds.py; benchmarks/engine_builds.md has
the results.
"""

from __future__ import annotations

import itertools

import onnx
import pytest

from infsa_deploy.config import EngineConfig
from infsa_deploy.engine.build import Listener
from infsa_deploy.engine.from_export import build
from infsa_deploy.engine.sidecar import read_sidecar
from infsa_deploy.files import sha256
from tests.engine.conftest import PLUGINS
from tests.engine.quantized import quantized

PRODUCTS = {None: {"fp32"}, "fp16": {"fp16"}, "bf16": {"bf16", "fp32"}, "int8": {"int8", "fp16"}}
TARGETS = (("sm80",), ("sm80", "sm89", "sm120"))


def _ways() -> list[tuple[str, int, str | None, bool, tuple[str, ...]]]:
    """Eight ways out of 64: each value of a choice meets each value of every other."""
    ways = []
    for a, b, c in itertools.product((0, 1), repeat=3):
        sizes, variants = (224, 1024), tuple(PLUGINS)
        ways.append((variants[b ^ c], sizes[a ^ c], tuple(PRODUCTS)[2 * a + b], bool(c), TARGETS[a ^ b ^ c]))
    return ways


def test_each_pair_of_choices_is_built():
    choices = (PLUGINS, (224, 1024), PRODUCTS, (True, False), TARGETS)
    for one, other in itertools.combinations(range(len(choices)), 2):
        assert {(way[one], way[other]) for way in _ways()} == set(itertools.product(choices[one], choices[other]))


@pytest.mark.parametrize(("variant", "size", "precision", "plugins", "targets"), _ways())
def test_engine(exported, double, tmp_path, variant, size, precision, plugins, targets):
    floating = exported(variant, image_size=(size, size), patch_size=32)
    model = floating
    if precision == "int8":
        model = quantized(floating)
    config = EngineConfig(
        precision=precision, plugins=plugins, plugin_library=double if plugins else None, targets=targets
    )
    engine = tmp_path / "m.engine"
    record = build(model, engine, config, Listener())
    plan = engine.read_bytes()
    assert read_sidecar(engine) == record
    assert (record.onnx_sha256, record.engine_sha256) == (sha256(model), sha256(engine))
    assert (record.targets, record.flavour, record.built_on) == (targets, "tensorrt-rtx", None)
    assert record.inputs["image"].maximum == (32, 3, size, size)
    assert record.precision.asked == precision
    assert set(record.precision.products) == PRODUCTS[precision]
    if precision == "int8":
        in_graph = sum(node.op_type == "MatMul" for node in onnx.load(model).graph.node)
        assert record.precision.products["int8"] == in_graph
    elif precision and plugins:
        assert record.precision.layers_percent[precision] > 90
    assert record.precision.products.get("fp32", 0) == (
        len(record.precision.kept_fp32) if precision else sum(record.precision.products.values())
    )
    if plugins:
        assert (record.plugins.mode, record.plugins.layers) == ("plugins", PLUGINS[variant])
        assert (record.plugins.proof, record.plugins.sha256) == ("network and plan", sha256(double))
        assert record.plugins.embedded
        assert double.read_bytes() in plan
    else:
        assert (record.plugins.mode, record.plugins.layers, record.plugins.library) == ("bodies", {}, None)
        assert b"infsa" not in plan
