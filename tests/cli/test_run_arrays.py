"""`run` and `inspect` on models of any inputs and outputs: files in by name, summaries and an archive out."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tests.runtime.any_interface import LOGITS_AND_MORE, MAPS, TWO_INPUTS, feeds, write


@pytest.fixture
def two(tmp_path):
    return write(TWO_INPUTS, tmp_path / "two.onnx")


@pytest.fixture
def files(tmp_path):
    """What the command line may be given, in the folder it runs in."""
    for index in range(2):
        Image.fromarray(np.full((9, 9, 3), 90 * index, np.uint8)).save(tmp_path / f"{index}.png")
    given = feeds()
    np.save(tmp_path / "mask.npy", given["mask"])
    np.save(tmp_path / "other.npy", given["mask"].astype(np.int64))
    np.save(tmp_path / "twos.npy", np.full((2, 3), 2))
    np.savez(tmp_path / "both.npz", **given)
    np.savez(tmp_path / "objects.npz", image=given["image"], mask=np.array([{}, {}]))
    (tmp_path / "text.npz").write_text("no archive")


@pytest.mark.parametrize(
    "arguments",
    ["both.npz", "0.png 1.png mask.npy", "0.png 1.png mask=other.npy", "mask=mask.npy 0.png 1.png"],
)
def test_run_is_fed_by_name(run, two, files, arguments):
    code, out, err = run("run", two, *arguments.split())
    assert code == 0, err
    boxes, count = out.splitlines()
    assert boxes.startswith("boxes: float32 [2, 3], min ")
    assert count == "count: int64 [], min 3, max 3, mean 3"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("nowhere.png", 2, "nothing was given for mask bool [batch, 3]"),
        ("0.png mask.npy", 2, "their axis 'batch' is 1 in one and 2 in the other"),
        ("0.png 1.png mask=twos.npy", 2, "it is int64, and the input 'mask' is bool"),
        ("both.npz 0.png", 2, "0.png is for no input"),
        ("both.npz mask.npy", 2, "it is fed twice"),
        ("0.png 1.png mask=nowhere.npy", 4, "nowhere.npy does not exist"),
        ("nowhere.png mask.npy", 4, "nowhere.png does not exist"),
        ("objects.npz", 4, "mask in objects.npz is no array of numbers"),
        ("text.npz", 4, "text.npz is no NumPy file"),
        ("both.npz -o out.txt", 2, "-o out.txt.npz"),
        ("both.npz -o nowhere/out.npz", 2, "mkdir"),
    ],
)
def test_run_says_what_is_wrong(run, two, files, arguments, code, message, tmp_path):
    ended, out, err = run("run", two, *arguments.split())
    assert (ended, out) == (code, "")
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("out*"))


def test_pictures_where_no_input_takes_them(run, files, tmp_path):
    write(MAPS, tmp_path / "maps.onnx", size=16)
    code, _, err = run("run", "maps.onnx", "0.png")
    assert code == 2
    assert "0.png cannot be fed to this model" in err


def test_run_summarises_and_writes_what_is_no_logits(run, files, tmp_path):
    write(MAPS, tmp_path / "maps.onnx")
    code, out, _ = run("run", "maps.onnx", "0.png", "1.png", "--json", "-o", "out.npz")
    (summary,) = json.loads(out)["outputs"]
    assert code == 0
    assert (summary["name"], summary["shape"], summary["dtype"]) == ("logits", [2, 3, 8, 8], "float32")
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["logits"].mean() == pytest.approx(summary["mean"])


def test_run_names_classes_and_summarises_the_rest(run, files, tmp_path):
    write(LOGITS_AND_MORE, tmp_path / "more.onnx", classes=("cat", "dog", "owl"))
    code, out, _ = run("run", "more.onnx", "0.png", "1.png", "--top", "1")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["0.png", "1.png", "tokens"]
    code, out, _ = run("run", "more.onnx", f"image={tmp_path}/0.png", "--json")
    assert [len(found) for found in json.loads(out).values()] == [1, 1]


def test_inspect_lists_all_inputs(run, two):
    code, out, _ = run("inspect", two, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["inputs"] == {"image": "FLOAT [batch, 3, 8, 8]", "mask": "BOOL [batch, 3]"}
    assert found["outputs"] == {"boxes": "FLOAT [batch, 3]", "count": "INT64 []"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "two.onnx", "--data", "digits"), "two.onnx does not classify pictures"),
        (("evaluate", "maps.onnx", "--data", "digits"), "maps.onnx does not classify pictures"),
        (("package", "two.onnx", "-o", "repository"), "images alone cannot feed this model"),
    ],
)
def test_commands_for_pictures_refuse_other_models(run, two, arguments, message, tmp_path):
    write(MAPS, tmp_path / "maps.onnx")
    code, _, err = run(*arguments)
    assert code == 2
    assert message in err
