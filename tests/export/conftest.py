"""One memory of traces for all tests of the export."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.export.traces import remembered


@pytest.fixture(scope="session", autouse=True)
def traces(tmp_path_factory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "traces"  # a worker's folder lies in the run's
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", remembered(torch.onnx.export, folder))
        yield
