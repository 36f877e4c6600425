"""Ceilings measured here, as far as they can be checked without a clock."""

from __future__ import annotations

import onnx
import pytest

from infsa_deploy.bench import limits
from infsa_deploy.records.bench import Settings

pytestmark = pytest.mark.own_process  # OpenVINO is loaded


def test_ceilings_of_this_machine():
    found = limits.measure_ceilings("run", Settings(threads=1, quick=True))
    assert set(found.flops_per_s) == {"fp32", "bf16", "int8"}
    assert set(found.method) == {*found.flops_per_s, "copy"}
    assert all(rate > 0 for rate in (*found.flops_per_s.values(), found.bytes_per_s))


@pytest.mark.parametrize(("package", "library"), [("openvino", "OpenVINO"), ("onnxruntime", "ONNX Runtime")])
def test_a_library_is_a_candidate_where_it_is_installed(package, library, monkeypatch):
    pytest.importorskip(package, reason=f"needs {package}, which is not installed")
    candidates = [(kind, by) for kind, by, _ in limits.products(8, 1, "cpu")]
    assert library in [by for _, by in candidates]
    monkeypatch.setattr(limits, "find_spec", lambda name: None if name == package else "there")
    without = [(kind, by) for kind, by, _ in limits.products(8, 1, "cpu")]
    assert without == [pair for pair in candidates if pair[1] != library]


def test_every_candidate_computes_the_same_product():
    pytest.importorskip("openvino", reason="needs OpenVINO, which is not installed")
    (first,) = limits._ort_product(64, 1, "MatMul")()
    (second,) = limits._openvino_product(64, 1, "fp32")().values()
    content, left = limits.product_model(64, "MatMul")
    right = onnx.numpy_helper.to_array(onnx.load_from_string(content).graph.initializer[0])
    one = 64 * 2.0**-24 * (abs(left) @ abs(right))  # a sum of n products in any order is off by at most n u sum |a b|
    assert (abs(first - second) <= 2 * one).all()
