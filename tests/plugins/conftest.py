"""Plugin tests run kernels in Triton's interpreter, which has to be chosen before triton is first imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
