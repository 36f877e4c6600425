"""What a command may write to: never onto a file that it reads, whatever name that has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infsa_deploy.errors import UsageError
from infsa_deploy.files import check_apart, check_target


@pytest.fixture
def read(tmp_path, monkeypatch) -> Path:
    """A file that is read, under a name from here."""
    monkeypatch.chdir(tmp_path)
    Path("own.onnx").write_text("weights")
    Path("folder").mkdir()
    return Path("own.onnx")


def test_every_name_of_one_file(read, tmp_path):
    os.link(read, "hard.onnx")
    os.symlink(read, "soft.onnx")
    os.symlink(tmp_path, "folder/up")
    for name in ("own.onnx", "./own.onnx", "folder/../own.onnx", "folder/up/own.onnx", "hard.onnx", "soft.onnx"):
        with pytest.raises(UsageError, match=r"onnx would be replaced") as refused:
            check_target(Path(name), [None, read])
        assert "it is the file own.onnx" in refused.value.why
    with pytest.raises(UsageError, match="would be replaced"):
        check_target(tmp_path / "own.onnx", [read])


def test_files_that_are_written_beside_the_target(read):
    for reading, beside in (("m.onnx.data", ".data"), ("m.onnx.json", ".json")):
        Path(reading).write_text("weights")
        with pytest.raises(UsageError, match=f"{reading} would be replaced"):
            check_target(Path("m.onnx"), [Path(reading)], beside=[beside])


def test_two_files_that_are_not_there_yet(read):
    with pytest.raises(UsageError, match="cache would be replaced"):
        check_apart([Path("cache")], [Path("folder/../cache")])
    check_apart([Path("new.onnx"), Path("own.onnx.data")], [read, Path("nowhere")])


def test_the_ending_of_a_name(read):
    with pytest.raises(UsageError, match=r"cannot write m\.pt") as refused:
        check_target(Path("m.pt"), suffix=".onnx")
    assert refused.value.fix == "write -o m.pt.onnx"
    check_target(Path("m.onnx"), suffix=".onnx")
