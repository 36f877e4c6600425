"""One model for every size equals a static export for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import torch
from infsa_models.vit import resize_positions

from infsa_deploy.errors import ModelError
from infsa_deploy.export.dynamic_size import interpolate_by_axis
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.graph.cost.operations import count_flops
from infsa_deploy.graph.store import load_model
from infsa_deploy.runtime.pictures.preprocess import preprocess

# The size it was made for, square, one row of patches: for one variant each size, as positions are resized before the
# blocks, which know no size; for the others one that needs resizing.
SIZES = {"linear": [(16, 24), (40, 40), (8, 56)], "pure": [(40, 40)], "softmax": [(8, 56)]}
INTERPOLATION = 1e-5  # of the largest logit: bicubic weights are rounded to float32 in two programs


@pytest.mark.parametrize("variant", SIZES)
def test_equals_static_exports(variant, tiny, export, rng, tmp_path):
    reference = tiny(variant)
    dynamic, _ = export(reference, dynamic_size=True)
    session = onnxruntime.InferenceSession(dynamic)
    for height, width in SIZES[variant]:
        image = replace(reference.image, height=height, width=width)
        resized = replace(reference, module=reference.module.at_image_size((height, width)), image=image)
        export_reference(resized, tmp_path / "static.onnx")
        pixels = rng.standard_normal((2, 3, height, width), dtype=np.float32)
        (expected,) = onnxruntime.InferenceSession(tmp_path / "static.onnx").run(None, {"image": pixels})
        (found,) = session.run(None, {"image": pixels})
        np.testing.assert_allclose(found, expected, rtol=0, atol=INTERPOLATION * np.abs(expected).max())


@pytest.mark.parametrize("grid", [(4, 6), (1, 1), (9, 2)])
def test_positions_by_axis_are_the_models(grid):
    table = torch.randn(1, 1 + 4 * 6, 5, generator=torch.Generator().manual_seed(0))
    expected = resize_positions(table.double(), (4, 6), grid)
    error = (interpolate_by_axis(table, (4, 6), grid) - expected).abs().max()
    yardstick = (resize_positions(table, (4, 6), grid) - expected).abs().max()
    assert error <= 2 * yardstick + torch.finfo(torch.float32).eps * expected.abs().max()


def test_axes_are_named_in_patches(tiny, export):
    path, model = export(tiny("pure"), dynamic_size=True)
    _, metadata = load_model(path)
    assert metadata.image.multiple_of == 8
    assert [str(dim) for dim in model.graph.inputs[0].shape] == ["batch", "3", "8*rows", "8*columns"]
    small = count_flops(model, {"batch": 1, "rows": 2, "columns": 3})
    _, static = export(tiny("pure"))
    rows, columns, E = 2, 3, 24
    positions = 2 * rows * rows * columns * E + 2 * rows * columns * columns * E
    assert small - count_flops(static, {"batch": 1}) == {"MatMul": positions}
    large = count_flops(model, {"batch": 1, "rows": 20, "columns": 30})
    pairs = [3 * N**2 + N for N in (7, 601)]  # two layers, two products each, of the last one only a row
    assert large["NeumannAttention"] * pairs[0] == small["NeumannAttention"] * pairs[1]


def test_a_picture_keeps_its_size_as_nearly_as_patches_allow(tiny):
    image = replace(tiny("pure").image, multiple_of=8)
    assert preprocess(np.zeros((33, 61, 3), np.float32), image).shape == (1, 3, 32, 64)
    assert preprocess(np.zeros((1, 2, 3), np.float32), image).shape == (1, 3, 8, 8)


def test_a_foreign_module_is_refused(tiny, export):
    from tests.export.authors_attention import factory

    with pytest.raises(ModelError, match="ForeignClassifier"):
        export(replace(tiny("linear"), module=factory()), dynamic_size=True)
