"""Images to calibrate on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.runtime.pictures.folder import calibration_batches


def test_the_zoo_gives_batches_of_the_models_size(tiny):
    batches = calibration_batches("zoo", replace(tiny("pure").image, multiple_of=8))
    assert [batch.shape for batch in batches] == [(8, 3, 16, 24)] * 8


def test_large_images_come_fewer_and_in_smaller_batches(tiny):
    batches = calibration_batches("zoo", replace(tiny("pure").image, height=1024, width=1024))
    assert [batch.shape for batch in batches] == [(1, 3, 1024, 1024)] * 4


def test_a_folder(tiny, tmp_path):
    (tmp_path / "inner").mkdir()
    np.save(tmp_path / "a.npy", np.zeros((5, 5), np.uint8))
    np.save(tmp_path / "inner" / "b.npy", np.full((5, 5), 255, np.uint8))
    (tmp_path / "notes.txt").write_text("not an image, and not named like one")
    (batch,) = calibration_batches(str(tmp_path), tiny("linear").image)
    assert batch[:, 0, 0, 0].tolist() == [-1.0, 1.0]
    (tmp_path / "c.png").write_text("named like an image")
    with pytest.raises(ModelError, match=r"c\.png"):
        calibration_batches(str(tmp_path), tiny("linear").image)


def test_no_folder_and_no_image(tiny, tmp_path):
    for folder, why in ((tmp_path, "no file ending in"), (tmp_path / "nowhere", "no such folder")):
        with pytest.raises(UsageError, match="cannot calibrate") as caught:
            calibration_batches(str(folder), tiny("linear").image)
        assert why in caught.value.why
