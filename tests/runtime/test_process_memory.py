"""What this process takes, as Linux tells it."""

from __future__ import annotations

import numpy as np

from infsa_deploy.runtime import memory


def test_the_peak_is_forgotten_and_grows_again():
    memory.forget_peak("cpu")
    before = memory.peak_bytes("cpu")
    held = np.ones(64 << 20, np.uint8)
    after = memory.peak_bytes("cpu")
    assert before
    assert after
    assert after - before > 0.9 * held.nbytes
    del held
    memory.forget_peak("cpu")
    assert memory.peak_bytes("cpu") < after - (32 << 20)


def test_a_gpu_that_pytorch_does_not_use_has_no_peak():
    assert memory.peak_bytes("cuda") is None
