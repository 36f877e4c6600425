"""Every form of export can be inspected, and says the same work where it is the same."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.config import ExportConfig
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.graph.cost.summary import summarise

FORMS = {
    "plain": {},
    "dynamic size": {"dynamic_size": True},
    "reference": {"fold": False},
    "fp16": {"dtype": "fp16"},
    "int8 dynamic": {"int8": "dynamic"},
    "int8 static": {"int8": "static"},
}


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_forms(variant, tiny, rng, tmp_path):
    reference, path = tiny(variant), tmp_path / "m.onnx"
    images = [rng.standard_normal((4, 3, 16, 24), dtype=np.float32)]
    found = {}
    for form, options in FORMS.items():
        export_reference(reference, path, ExportConfig(**options), calibration=images)
        found[form] = summarise(path)
    E, rows, columns = 24, 2, 3
    positions = 2 * rows * columns * (rows + columns) * E  # interpolated in the graph, an axis at a time
    for form, options in FORMS.items():
        extra = positions if options.get("dynamic_size") else 0
        assert form == "reference" or found[form].flops == found["plain"].flops + extra
    gain = found["reference"].flops - found["plain"].flops
    if variant == "linear":
        assert gain > 0
    else:  # in pure's formula the last product S v is hoisted to one row too
        assert gain == 0
    assert all(sum(summary.bytes_moved.values()) > summary.weights_bytes for summary in found.values())
    assert found["fp16"].weights_bytes < found["plain"].weights_bytes * 0.55


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_an_image_of_a_fixed_batch(variant, tiny, export):
    one, six = (summarise(export(tiny(variant), static_batch=batch)[0]) for batch in (1, 6))
    assert six.flops_by_op == one.flops_by_op
    for moved in (one.bytes_moved, six.bytes_moved):
        del moved["weights"]  # shapes, which are constants, among them
    assert six.bytes_moved == one.bytes_moved


def test_tiles_are_not_counted(tiny, export):
    path, _ = export(tiny("linear"), tile_tokens=2)
    summary = summarise(path)
    assert summary.flops is None
    assert summary.bytes_moved is None
