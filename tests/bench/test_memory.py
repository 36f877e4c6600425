"""Memory as Linux tells it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from infsa_deploy.bench import memory


def test_what_a_process_holds_grows_with_what_it_writes_to():
    before = memory.resident_bytes(os.getpid())
    held = np.ones(64 << 20, np.uint8)
    after = memory.resident_bytes(os.getpid())
    assert before
    assert after
    assert after - before > 0.9 * held.nbytes


def test_a_process_that_is_gone_holds_nothing_that_can_be_told():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert memory.resident_bytes(gone.pid) is None
