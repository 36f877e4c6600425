"""What a child of the benchmark answers."""

from __future__ import annotations

from dataclasses import replace

from infsa_deploy.bench import jobs
from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.records import to_json
from tests.engine_record import RECORD


def test_an_engine_is_counted_in_the_onnx_file_beside_it(tiny, export, monkeypatch, tmp_path):
    path, _ = export(tiny("linear"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    engine = path.with_name("m.engine")
    engine.touch()
    sidecar_path(engine).write_text(to_json(replace(RECORD, onnx=path.name)))
    assert jobs.count(str(engine), 1, 16, 24) == jobs.count(str(path), 1, 16, 24)
    path.unlink()
    assert jobs.count(str(engine), 1, 16, 24) is None
