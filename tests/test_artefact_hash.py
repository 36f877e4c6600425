"""What identifies a model file."""

from __future__ import annotations

import hashlib

from infsa_deploy.files import artefact_sha256


def test_a_file_alone_has_its_own_hash_as_other_tools_print_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"graph")
    (tmp_path / "other.onnx.data").write_bytes(b"weights of another")
    assert artefact_sha256(tmp_path / "m.onnx") == hashlib.sha256(b"graph").hexdigest()


def test_weights_kept_beside_it_count(tmp_path):
    found = set()
    for graph, weights in ((b"graph", None), (b"graph", b"1"), (b"graph", b"2"), (b"graph1", b""), (b"grap", b"h1")):
        (tmp_path / "m.onnx").write_bytes(graph)
        if weights is not None:
            (tmp_path / "m.onnx.data").write_bytes(weights)
        found.add(artefact_sha256(tmp_path / "m.onnx"))
    assert len(found) == 5
