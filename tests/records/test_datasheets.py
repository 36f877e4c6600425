"""Floors from rates, by hand."""

from __future__ import annotations

import pytest

from infsa_deploy.errors import UsageError
from infsa_deploy.records import datasheets
from infsa_deploy.records.bench import Ceilings, Floor, Work

CEILINGS = Ceilings("run", {"fp32": 100e9, "int8": 400e9}, 20e9, {})


def work(flops: dict[str, int], weights: int = 0, activations: int | None = None) -> Work:
    return Work(flops, weights, 1000, 1000, activations)


def floor(work: Work):
    return work.floor(CEILINGS.flops_per_s, CEILINGS.bytes_per_s)


def test_bound_by_products():
    assert floor(work({"fp32": 50_000_000_000}, weights=1_000_000)) == Floor(500.0, "compute")


def test_types_add_up():
    assert floor(work({"fp32": 10_000_000_000, "int8": 40_000_000_000})).floor_ms == pytest.approx(100 + 100)


def test_bound_by_bytes():
    assert floor(work({"fp32": 1000}, weights=2_000_000_000 - 2000)) == Floor(100.0, "memory")


def test_activations_may_stay_in_cache():
    assert floor(work({"fp32": 1000}, 10_000, 10**12)) == floor(work({"fp32": 1000}, 10_000, None))


def test_no_floor_without_a_measured_rate():
    assert floor(work({"fp16": 1000})) is None


def test_predictions_are_of_the_datasheet():
    found = datasheets.predict(work({"fp16": 312_000_000_000}), "a100-40gb")
    assert found is not None
    assert (found.device, found.predicted_floor_ms, found.bound) == ("a100-40gb", pytest.approx(1.0), "compute")
    with pytest.raises(UsageError, match="v100"):
        datasheets.predict(work({"fp16": 1}), "v100")


def test_every_datasheet_has_a_source_and_every_type():
    for sheet in datasheets.DATASHEETS.values():
        assert sheet.source
        assert set(sheet.flops_per_s) == {"fp32", "fp16", "bf16", "int8"}
