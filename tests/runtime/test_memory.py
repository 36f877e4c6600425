"""Asking for memory before taking it."""

from __future__ import annotations

import numpy as np
import pytest

from infsa_deploy.errors import HostError
from infsa_deploy.graph.cost.memory import peak_activation_bytes
from infsa_deploy.graph.store import load_model
from infsa_deploy.runtime import memory
from infsa_deploy.runtime.memory import available_bytes, check_fits, describe_need, token_count
from infsa_deploy.runtime.model import Model
from infsa_deploy.runtime.sessions.ort import OrtSession


def test_this_machine_has_memory():
    free = available_bytes()
    assert free is None or 0 < free < 2**50


def test_what_files_fill_in_a_control_group_is_free(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64 kB\nMemAvailable: 9000000 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert available_bytes() == 9_000_000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() == 9_000_000 * 1024
    (tmp_path / "memory.max").write_text("8000\n")
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 6000\nactive_file 2000\ninactive_file 3500\n")
    assert available_bytes() == 8000 - 7000 + 5500


def test_peak_of_a_known_graph(tiny, export):
    """pure: while NeumannAttention runs, the residual, qkv and y are alive, and its workspace; y is one row."""
    _, model = export(tiny("pure", depth=1, mlp_dim=24))
    N, E, H, D = 7, 24, 3, 8
    workspace = H * N * N + H * N + 6 * H * N * D
    assert peak_activation_bytes(model, {"batch": 1}) == pytest.approx(4 * (N * E + 3 * N * E + E + workspace), abs=64)


def test_a_batch_merged_with_heads_is_counted(tiny, export):
    """softmax attention transposes its keys as [batch * heads, N, D], an axis that shape inference leaves unnamed."""
    _, model = export(tiny("softmax"))
    one, nine = (peak_activation_bytes(model, {"batch": batch}) for batch in (1, 9))
    assert nine == pytest.approx(9 * one, abs=9 * 64)


@pytest.mark.parametrize(("variant", "hops"), [("linear", 1), ("pure", 1), ("pure", 2)])
def test_a_free_size_is_a_polynomial_in_tokens(variant, hops, tiny, export):
    path, model = export(tiny(variant, hops=hops), dynamic_size=True)
    need = load_model(path)[1].memory
    assert (need.bytes_per_token_pair > 1) == (hops > 1)  # one hop walks N x N in tiles
    for rows, columns in ((90, 70), (300, 200)):
        tokens = rows * columns + 1
        exact = peak_activation_bytes(model, {"batch": 1, "rows": rows, "columns": columns})
        assert need.total_bytes(tokens) - need.weights_bytes == pytest.approx(exact, rel=0.01)


def test_tiles_need_less(tiny, export):
    plain, _ = export(tiny("linear", mlp_dim=960, image_size=(512, 512)))
    untiled = load_model(plain)[1].memory.total_bytes()
    tiled, _ = export(tiny("linear", mlp_dim=960, image_size=(512, 512)), tile_tokens=256)
    assert load_model(tiled)[1].memory.total_bytes() < untiled / 2


def test_a_batch_as_large_as_memory_allows(tiny, export, monkeypatch):
    metadata = OrtSession(export(tiny("pure"))[0], threads=1).metadata
    image, weights = metadata.image, metadata.memory.weights_bytes
    one = metadata.memory.total_bytes(7) - weights
    for free, batch in ((weights + 5.5 * one, 5), (weights + 90 * one, 64), (weights, 1), (0, 1), (None, 64)):
        monkeypatch.setattr(memory, "available_bytes", lambda free=free: free)
        assert memory.largest_batch(metadata, image, 64) == batch


def test_what_does_not_fit_is_refused_with_the_alternative(tiny, export, tmp_path, monkeypatch):
    np.save(tmp_path / "image.npy", np.zeros((800, 800), np.uint8))
    for variant, hops, alternative in (("pure", 2, "linear model"), ("linear", 1, "--tile-tokens")):
        path, _ = export(tiny(variant, hops=hops), dynamic_size=True)
        session, notes = OrtSession(path, threads=1), []
        monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
        monkeypatch.setattr(OrtSession, "__call__", lambda *args: pytest.fail("ran all the same"))
        with pytest.raises(HostError, match="10,001 tokens") as caught:
            Model(session).predict([tmp_path / "image.npy"], note=notes.append)
        assert alternative in caught.value.fix
        assert "1 MB are free" in caught.value.why
        assert len(notes) == 1
        assert ("N x N" in notes[0]) == (variant == "pure")


def test_unknown_memory_is_no_refusal(tiny, export, monkeypatch):
    path, _ = export(tiny("pure"))
    _, metadata = load_model(path)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    check_fits(metadata, metadata.image, batch=10**9)
    assert token_count(metadata.memory, metadata.image) == 7
    assert "7 tokens" in describe_need(metadata, metadata.image)
