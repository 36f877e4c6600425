"""The trained models answer after export as they did before, image by image."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from infsa_models import digits, zoo

from infsa_deploy.config import ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference


@pytest.mark.parametrize("variant", ["linear", "pure", "softmax"])
def test_every_test_image_keeps_its_answer(variant, tmp_path):
    reference = load_reference(ModelSource(variant=variant))
    export_reference(reference, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    test = digits.test_set()
    module = zoo.build(f"digits_{variant}")
    agreed, right = 0, 0
    for images, labels in zip(np.split(test.images, 10), np.split(test.labels, 10), strict=True):
        pixels = digits.normalize(images)
        with torch.inference_mode():
            eager = module(torch.from_numpy(pixels)).numpy().argmax(axis=1)
        found = session.run(None, {"image": pixels})[0].argmax(axis=1)
        agreed, right = agreed + int((eager == found).sum()), right + int((found == labels).sum())
    assert agreed == len(test.labels)
    assert right >= 0.95 * len(test.labels)
