"""Floors from ceilings, by hand; and ceilings measured here, as far as they can be checked without a clock."""

from __future__ import annotations

import onnx
import pytest
import torch

from infsa_deploy.bench import datasheets, roofline
from infsa_deploy.errors import UsageError
from infsa_deploy.measurements import Ceilings, Work

CEILINGS = Ceilings("run", {"fp32": 100e9, "int8": 400e9}, 20e9, {})


def work(flops: dict[str, int], weights: int = 0, activations: int | None = None) -> Work:
    return Work(flops, weights, 1000, 1000, activations)


def test_bound_by_products():
    floor = roofline.floor(work({"fp32": 50_000_000_000}, weights=1_000_000), CEILINGS, latency_ms=750)
    assert floor is not None
    assert (floor.bound, floor.floor_ms, floor.achieved_over_floor) == ("compute", 500.0, 1.5)


def test_types_add_up():
    floor = roofline.floor(work({"fp32": 10_000_000_000, "int8": 40_000_000_000}), CEILINGS, latency_ms=200)
    assert floor is not None
    assert floor.floor_ms == pytest.approx(100 + 100)


def test_bound_by_bytes():
    floor = roofline.floor(work({"fp32": 1000}, weights=2_000_000_000 - 2000), CEILINGS, latency_ms=300)
    assert floor is not None
    assert (floor.bound, floor.floor_ms) == ("memory", 100.0)


def test_activations_may_stay_in_cache():
    with_them = roofline.floor(work({"fp32": 1000}, 10_000, 10**12), CEILINGS, 1.0)
    without = roofline.floor(work({"fp32": 1000}, 10_000, None), CEILINGS, 1.0)
    assert with_them == without


def test_no_floor_without_a_measured_rate():
    assert roofline.floor(work({"fp16": 1000}), CEILINGS, 1.0) is None


def test_predictions_are_of_the_datasheet():
    found = roofline.predict(work({"fp16": 312_000_000_000}), "a100-40gb")
    assert found is not None
    assert (found.device, found.predicted_floor_ms, found.bound) == ("a100-40gb", pytest.approx(1.0), "compute")
    with pytest.raises(UsageError, match="v100"):
        roofline.predict(work({"fp16": 1}), "v100")


def test_every_datasheet_has_a_source_and_every_type():
    for sheet in datasheets.DATASHEETS.values():
        assert sheet.source
        assert set(sheet.flops_per_s) == {"fp32", "fp16", "bf16", "int8"}


def test_ceilings_of_this_machine():
    found = roofline.measure_ceilings("run", threads=1, device="cpu", quick=True)
    assert set(found.flops_per_s) == {"fp32", "bf16", "int8"}
    assert set(found.method) == {*found.flops_per_s, "copy"}
    assert all(rate > 0 for rate in (*found.flops_per_s.values(), found.bytes_per_s))


@pytest.mark.own_process
def test_openvino_is_a_candidate_where_it_is_installed(monkeypatch):
    pytest.importorskip("openvino", reason="needs OpenVINO, which is not installed")
    products = [(kind, library) for kind, library, _ in roofline._products(torch, 8, 1, "cpu")]
    assert [kind for kind, library in products if library == "OpenVINO"] == ["fp32", "bf16"]
    monkeypatch.setattr(roofline, "find_spec", lambda name: None)
    without = [(kind, library) for kind, library, _ in roofline._products(torch, 8, 1, "cpu")]
    assert without == [pair for pair in products if pair[1] != "OpenVINO"]


@pytest.mark.own_process
def test_every_candidate_computes_the_same_product():
    pytest.importorskip("openvino", reason="needs OpenVINO, which is not installed")
    (first,) = roofline._ort_product(64, 1, "MatMul")()
    (second,) = roofline._openvino_product(64, 1, "fp32")().values()
    content, left = roofline._product_model(64, "MatMul")
    right = onnx.numpy_helper.to_array(onnx.load_from_string(content).graph.initializer[0])
    one = 64 * 2.0**-24 * (abs(left) @ abs(right))  # a sum of n products in any order is off by at most n u sum |a b|
    assert (abs(first - second) <= 2 * one).all()
