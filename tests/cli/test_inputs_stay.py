"""No command writes onto a file that it reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from infsa_models.checkpoint import save_vit
from PIL import Image


@pytest.fixture
def unchanged(run, tmp_path):
    """Type a command that has to be refused as a wrong request, and see that no file in the folder changed."""

    def typed(*arguments: object) -> str:
        before = _contents(tmp_path)
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), err
        assert "Traceback" not in err
        assert _contents(tmp_path) == before
        return err

    return typed


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_export(unchanged, tiny, tmp_path):
    save_vit(tiny("linear").module, tmp_path / "own.safetensors")
    assert "has to end in .onnx" in unchanged("export", "--weights", "own.safetensors", "-o", "own.safetensors")
    for name in ("own.onnx", "m.onnx.data"):
        shutil.copy("own.safetensors", name)
    os.link("own.safetensors", "hard.onnx")
    os.symlink("own.safetensors", "soft.onnx")
    for weights, output in (
        ("own.onnx", "own.onnx"),
        ("own.safetensors", "hard.onnx"),
        ("own.safetensors", "soft.onnx"),
        ("hard.onnx", "soft.onnx"),
        ("m.onnx.data", "m.onnx"),
    ):
        assert "would be replaced" in unchanged("export", "--weights", weights, "-o", output)
    Path("names.onnx").write_text("a\nb\nc\nd\ne\n")
    asked = ("export", "--weights", "own.safetensors", "--classes", "names.onnx", "-o", "names.onnx")
    assert "would be replaced" in unchanged(*asked)


def test_build_engine(unchanged):
    for name in ("m.onnx", "m.onnx.data"):
        Path(name).write_text("a model, which nobody opens")
    os.link("m.onnx", "cache")
    os.symlink("m.onnx", "m.engine.json")
    for options in (
        ("-o", "m.onnx"),
        ("-o", "m.onnx.data"),
        ("-o", "m.engine"),
        ("-o", "cache"),
        ("-o", "new.engine", "--timing-cache", "cache"),
        ("-o", "new.engine", "--timing-cache", "new.engine"),
        ("-o", "new.engine", "--timing-cache", "new.engine.log"),
        ("-o", "lib.so", "--plugins", "lib.so"),
    ):
        assert "would be replaced" in unchanged("build-engine", "m.onnx", *options)


def test_bench(unchanged):
    Path("m.onnx").write_text("a model, which nobody opens")
    assert "would be replaced" in unchanged("bench", "m.onnx", "-o", "m.onnx")
    os.link("m.onnx", "bench.jsonl")
    assert "would be replaced" in unchanged("bench", "m.onnx")


def test_run(unchanged):
    for name in ("m.onnx", "a.npz", "b.npy"):
        Path(name).write_text("numbers, which nobody reads")
    os.link("m.onnx", "hard.npz")
    os.symlink("b.npy", "soft.npz")
    for output in ("a.npz", "hard.npz", "soft.npz"):
        assert "would be replaced" in unchanged("run", "m.onnx", "a.npz", "mask=b.npy", "-o", output)


def test_evaluate(unchanged):
    Path("m.onnx").write_text("a model, which nobody opens")
    Path("images").mkdir()
    for name in ("a", "reliability"):
        Image.fromarray(np.zeros((64, 64), np.uint8)).save(f"images/{name}.png")
    Path("images/report.json").write_text("a 0\nreliability 1\n")
    asked = ("evaluate", "m.onnx", "--data", "images", "--labels", "images/report.json", "-o")
    assert "would be replaced" in unchanged(*asked, "images")
    Path("out").mkdir()
    os.link("m.onnx", "out/0_m.jsonl")
    assert "would be replaced" in unchanged(*asked, "out")
