"""Int8: which products, in which form, at what measured cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from infsa_models import digits

from infsa_deploy.config import ExportConfig
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.export.pipeline import export_quantized, export_reference
from infsa_deploy.graph.precision import int8_choice as quantization_plan
from infsa_deploy.graph.precision.int8 import in_batches_of, quantizable, quantize
from infsa_deploy.graph.precision.int8_choice import quantize_measured, quantize_reported, relative_error, run_logits
from infsa_deploy.records.model import ImageSpec


@pytest.fixture
def calibration(rng):
    return [rng.standard_normal((4, 3, 16, 24), dtype=np.float32) for _ in range(2)]


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_candidates_are_the_products_with_a_matrix(variant, tiny, export):
    _, model = export(tiny(variant))
    weights = {node.inputs[1].const_value.shape.numpy() for node in model.graph if node.name in quantizable(model)}
    packed_or_query = (24, 72) if variant == "pure" else (24, 24)
    assert weights == {packed_or_query, (24, 24), (24, 40), (40, 24)}


def test_dynamic_and_static_forms(tiny, export, calibration):
    _, model = export(tiny("linear"))
    names = quantizable(model)
    dynamic = quantize(model, names, "dynamic", calibration)
    assert op_types(dynamic).count("MatMulInteger") == len(names)
    static = quantize(model, names, "static", calibration)
    assert op_types(static).count("QuantizeLinear") >= 1
    assert "MatMulInteger" not in op_types(static)
    scales = [node.inputs[1].const_value for node in static.graph if node.op_type == "DequantizeLinear"]
    assert sum(scale.size > 1 for scale in scales) == len(names)
    zero_points = [node.inputs[2].const_value.numpy() for node in static.graph if "quantizeLinear" in node.op_type]
    assert all((zero == 0).all() for zero in zero_points)
    for quantized in (dynamic, static):
        assert set(quantized.functions) == set(model.functions)
        onnx.checker.check_model(ir.to_proto(quantized))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_fixed_batch(kind, tiny, calibration, tmp_path):
    config = ExportConfig(int8=kind, static_batch=3)
    report = export_reference(tiny("linear"), tmp_path / "m.onnx", config, calibration=calibration)
    assert report.quantization.images == 8
    assert report.quantization.kept_float == ()


def test_images_in_batches_of_a_number(calibration):
    batches = in_batches_of(3, calibration)
    assert [len(batch) for batch in batches] == [3, 3, 3]
    joined = np.concatenate(calibration)
    np.testing.assert_array_equal(np.concatenate(batches), np.concatenate([joined, joined[-1:]]))
    assert in_batches_of("batch", calibration) is calibration


def test_the_worst_product_is_kept_in_float(tiny, export, calibration, monkeypatch):
    """One weight with an outlier in each column leaves int8 no resolution for the rest."""
    _, model = export(tiny("linear"))
    node = next(n for n in model.graph if n.name == quantizable(model)[1])
    weight = node.inputs[1].const_value.numpy().copy()
    weight[0] = 1000.0
    node.inputs[1].const_value = ir.tensor(weight, name=node.inputs[1].name)
    only_it = quantize(model, [str(node.name)], "dynamic", calibration)
    alone = relative_error(run_logits(only_it, calibration), run_logits(model, calibration))
    monkeypatch.setattr(quantization_plan, "ERROR_LIMIT", alone / 2)
    _, report = quantize_measured(model, "dynamic", calibration)
    assert node.name in report.kept_float
    assert report.error_alone[str(node.name)] == pytest.approx(alone) == max(report.error_alone.values())


def test_the_limit_holds_and_is_reported(tiny, export, calibration, monkeypatch):
    _, model = export(tiny("linear"))
    exact = run_logits(model, calibration)
    _, everything = quantize_measured(model, "dynamic", calibration)
    assert everything.kept_float == ()
    assert everything.error_alone == {}
    monkeypatch.setattr(quantization_plan, "ERROR_LIMIT", everything.relative_error * 0.7)
    quantized, report = quantize_measured(model, "dynamic", calibration)
    assert 0 < len(report.kept_float) < report.products
    assert report.relative_error <= everything.relative_error * 0.7
    assert report.relative_error == pytest.approx(relative_error(run_logits(quantized, calibration), exact), rel=1e-6)
    assert op_types(quantized).count("MatMulInteger") == report.products - len(report.kept_float)
    monkeypatch.setattr(quantization_plan, "ERROR_LIMIT", 0.0)
    with pytest.raises(ModelError, match="no matrix product"):
        quantize_measured(model, "dynamic", calibration)


def test_export_says_what_it_did(tiny, calibration, tmp_path):
    reference, config = tiny("linear"), ExportConfig(int8="dynamic")
    report = export_reference(reference, tmp_path / "m.onnx", config, calibration=calibration)
    assert report.metadata.dtype == "int8"
    assert report.quantization is not None
    assert report.metadata.quantization_error == report.quantization.max_error > 0
    assert report.quantization.accuracy_before is None
    with pytest.raises(UsageError, match="needs images"):
        export_reference(reference, tmp_path / "n.onnx", config)
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.parametrize(
    ("width", "mean", "measured"), [(64, digits.MEAN, True), (96, digits.MEAN, False), (64, 0.5, False)]
)
def test_accuracy_is_measured_only_where_the_digits_are_the_models_input(width, mean, measured, tiny, export):
    reference = tiny("linear", image_size=(64, width), in_channels=1, num_classes=10)
    image = ImageSpec(1, 64, width, (mean,), (digits.STD,))
    _, model = export(reference)
    reference = replace(reference, classes=digits.CLASS_NAMES, image=image)
    images = [np.zeros((2, 1, 64, width), np.float32) + 0.5]
    _, report = quantize_reported(model, reference.image, reference.classes, "dynamic", images, lambda phase: None)
    assert (report.accuracy_after is not None) == measured


@pytest.mark.parametrize("variant", ["linear", "pure"])
def test_from_a_float_export_comes_the_file_that_a_whole_export_gives(variant, tiny, calibration, tmp_path):
    reference = tiny(variant)
    whole, plain, found = (tmp_path / name for name in ("whole.onnx", "plain.onnx", "found.onnx"))
    report = export_reference(reference, whole, ExportConfig(int8="dynamic"), calibration=calibration)
    export_reference(reference, plain, ExportConfig())
    again = export_quantized(plain, reference, found, "dynamic", calibration)
    assert (
        replace(again, path=str(whole), rewritten=report.rewritten) == report
    )  # a file does not tell what was rewritten
    assert found.read_bytes() == whole.read_bytes()


def test_int8_and_a_narrow_type_exclude_each_other():
    with pytest.raises(UsageError, match="cannot be combined"):
        replace(ExportConfig(int8="static"), dtype="fp16")
