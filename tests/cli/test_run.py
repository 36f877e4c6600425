"""`run` on pictures, options and models that are out of order."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import click
import numpy as np
import pytest
from PIL import Image

import infsa_deploy
from infsa_deploy.cli import COMMANDS, cli
from infsa_deploy.errors import ModelError, UsageError, one_line
from infsa_deploy.runtime import cores
from infsa_deploy.runtime.pictures import limit as picture_limit
from infsa_deploy.runtime.sessions import ort
from infsa_deploy.runtime.sessions.ort import OrtSession


@pytest.fixture
def model(digits) -> Path:
    """A model of 1 x 64 x 64 and ten classes."""
    return digits["linear"]


@pytest.fixture
def pictures(tmp_path) -> None:
    """a.png and b.png, which are pictures, and bad.png, which is none."""
    for index, name in enumerate("ab"):
        Image.fromarray(np.full((16, 24, 3), 90 * index, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "bad.png").write_text("no picture")


def test_a_bad_picture_is_named_and_the_others_are_done(run, model, pictures):
    code, out, err = run("run", model, "a.png", "bad.png", "b.png", "nowhere.png")
    assert code == 4
    assert [line.split(":")[0] for line in out.splitlines()] == ["a.png", "b.png"]
    assert "error: bad.png is no image." in err
    assert "error: nowhere.png does not exist." in err
    assert "2 of 4 images were left out.\n  why: the first: bad.png, nowhere.png." in err
    code, out, _ = run("run", model, "bad.png", "b.png", "--json")
    assert (code, [found["image"] for found in json.loads(out)]) == (4, ["b.png"])
    code, out, err = run("run", model, "bad.png")
    assert (code, out, err.count("error:")) == (4, "", 1)


@pytest.mark.parametrize("name", ["a\nb.png", "a\r\x1b[2J.png", "a\u2028b.png", "a\udcffb.png"])
def test_a_name_does_not_split_a_line(run, model, pictures, tmp_path, name):
    (tmp_path / name).write_bytes((tmp_path / "a.png").read_bytes())
    code, out, _ = run("run", model, name, "b.png")
    assert code == 0
    first, second = out.split("\n")[:2]
    assert first.startswith(one_line(name) + ": ")
    assert second.startswith("b.png: ")
    (tmp_path / name).write_text("no picture")
    _, _, err = run("run", model, name)
    assert f"error: {one_line(name)} is no image.\n  why:" in err
    assert one_line(name).isprintable()


def test_an_animation(run, model):
    frames = [Image.fromarray(np.full((16, 24), value, np.uint8)) for value in (0, 200)]
    frames[0].save("a.gif", save_all=True, append_images=frames[1:])
    code, out, err = run("run", model, "a.gif")
    assert (code, out.count("\n")) == (0, 1)
    assert "a.gif has 2 frames or pages: the first is used." in err


def test_a_limit_for_pictures(run, model, pictures, monkeypatch):
    code, _, err = run("run", model, "a.png", "--max-pixels", "383")
    assert code == 4
    assert "24 x 16 is 384 pixels" in err
    monkeypatch.setattr(picture_limit, "ALWAYS_BYTES", 0)
    monkeypatch.setattr(picture_limit, "available_bytes", lambda: 1024)
    assert run("run", model, "a.png")[0] == 4
    assert run("run", model, "a.png", "--max-pixels", "384")[0] == 0


def test_threads_are_no_more_than_the_cores(run, model, pictures, monkeypatch):
    started = []

    def noted(asked):
        started.append(cores.thread_count(asked))
        return started[-1]

    monkeypatch.setattr(ort, "thread_count", noted)
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, _, err = run("run", model, "a.png", "--threads", "9999")
    assert (code, started) == (0, [2])
    assert "warning: 9999 threads are more than the 2 cores that may be used: taking 2." in err
    with pytest.warns(RuntimeWarning, match="9999 threads are more than the 2 cores"):
        infsa_deploy.load(model, threads=9999).close()
    assert "warning" not in run("run", model, "a.png", "--threads", "2")[2]
    assert started == [2, 2, 2]


@pytest.mark.parametrize("command", ["run", "validate", "evaluate", "explain"])
def test_threads_of_every_command(run, command, monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    given = {"run": ["a.png"], "explain": ["a.png"], "evaluate": ["--data", "nowhere"]}.get(command, [])
    code, _, err = run(command, "nowhere.onnx", *given, "--threads", "9999")
    assert code in (2, 4)
    assert "taking 2." in err


def test_no_command_has_an_option_of_its_own_for_threads():
    """Of `package`, the threads are those of a server, whose cores are not known."""
    commands = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    options = {name: option for name, c in commands.items() for option in c.params if "--threads" in option.opts}
    assert {name for name, option in options.items() if option.callback is None} == {"package"}
    assert options["package"].type.max == 1024
    assert "bench" in options


@pytest.mark.parametrize("options", [("--mean", "nan"), ("--std", "inf"), ("--mean", "-inf"), ("--std", "1e999")])
def test_numbers_are_finite(run, options):
    code, _, err = run("export", "--variant", "linear", *options)
    assert code == 2
    assert "is not finite" in err


def test_one_type_of_an_engine(run):
    for options in (("--fp16", "--bf16"), ("--bf16", "--int8"), ("--fp16", "--bf16", "--int8")):
        code, _, err = run("build-engine", "m.onnx", *options)
        assert code == 2
        assert f"{' and '.join(options)} cannot be combined" in err


def _broken(monkeypatch, value: float) -> None:
    """Make the model answer `value` for the second of two images, and what it should for others."""
    call = OrtSession.__call__

    def answer(session, feeds):
        found = call(session, feeds)
        if len(found["logits"]) > 1:
            found["logits"][1, 2] = value
        return found

    monkeypatch.setattr(OrtSession, "__call__", answer)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite(run, model, pictures, monkeypatch, value):
    _broken(monkeypatch, value)
    code, out, err = run("run", model, "a.png", "b.png")
    assert (code, out.count("\n")) == (4, 1)
    assert "error: the model's logits for b.png are not finite.\n  why: 1 of 10 are NaN or infinite" in err
    assert "nan" not in out
    with infsa_deploy.load(model, threads=1) as loaded:
        with pytest.raises(ModelError, match="are not finite"):
            loaded.predict(["a.png", "b.png"])
        images = np.zeros((2, 1, 64, 64), np.float32)
        for call in (loaded.run, lambda array: loaded({"image": array})):
            with pytest.warns(RuntimeWarning, match="are not finite"):
                assert not np.isfinite(call(images)["logits"]).all()


def test_input_that_is_no_number(model):
    images = np.zeros((2, 1, 64, 64), np.float32)
    images[1, 0, 3, 4] = np.nan
    with infsa_deploy.load(model, threads=1) as loaded:
        for call in (loaded.run, lambda array: loaded({"image": array})):
            with pytest.raises(UsageError, match="input 'image' holds NaN"):
                call(images)


def test_nothing_in_nothing_out(model):
    with infsa_deploy.load(model, threads=1) as loaded:
        for call in (loaded.run, lambda array: loaded({"image": array})):
            found = call(np.zeros((0, 1, 64, 64), np.float32))
            assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
                "logits": ((0, 10), np.float32)
            }
            with pytest.raises(UsageError, match="the model takes float32"):
                call(np.zeros((0, 1, 64, 65), np.float32))
        assert loaded.predict(np.zeros((0, 64, 64, 1), np.uint8)) == []
        assert loaded.predict([]) == []


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"\xef\xbb\xbfzero\none\ntwo\nthree\nfour\n\n", ("zero", "one", "two", "three", "four")),
        (b"zero\r\none\r\ntwo\r\nthree\r\nfour", ("zero", "one", "two", "three", "four")),
        ("\u00e9t\u00e9\na\u2028b\nc d\ne\nf\n".encode(), ("été", "a\u2028b", "c d", "e", "f")),
    ],
)
def test_files_of_class_names(tiny, tmp_path, content, names):
    from infsa_deploy.export.naming import relabelled

    (tmp_path / "names.txt").write_bytes(content)
    assert relabelled(tiny("linear"), tmp_path / "names.txt", (), ()).classes == names
    (tmp_path / "names.txt").write_bytes(b"zero\n\ntwo\nthree\nfour\n")
    with pytest.raises(UsageError, match="names no class in line 2"):
        relabelled(tiny("linear"), tmp_path / "names.txt", (), ())


WRONG = (
    ("export", "--weights", "nowhere.pt"),
    ("export", "--classes", "nowhere.txt"),
    ("export", "--module", "factory"),
    ("export", "--model", "digits_linear", "-o", "m.pt"),
    ("export", "--model", "digits_linear", "-o", "nowhere/m.onnx"),
    ("export", "--mean", "nan"),
    ("validate", "nowhere.onnx"),
    ("validate", "."),
    ("bench", "nowhere.onnx"),
    ("bench", "-o", "nowhere/bench.jsonl"),
    ("inspect", "nowhere.onnx"),
    ("inspect", "."),
)
CHECKS = """
import sys
from infsa_deploy.cli import main
for arguments in eval(sys.argv[1]):
    try:
        main(list(arguments))
    except SystemExit as ended:
        print(ended.code, "torch" in sys.modules)
"""


def test_what_is_typed_is_checked_before_torch_is_imported(tmp_path):
    typed = [sys.executable, "-c", CHECKS, repr(WRONG)]
    ended = subprocess.run(typed, capture_output=True, text=True, cwd=tmp_path)
    lines = ended.stdout.splitlines()
    found = dict(zip(WRONG, lines, strict=True))
    assert {line.split()[1] for line in lines} == {"False"}, found
    assert {line.split()[0] for line in lines} == {"2", "4"}, found
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (("exprot",), ["error: No such command 'exprot'.", "  fix: infsa-deploy --help"]),
        (("run",), ["error: Missing argument 'MODEL'.", "  fix: infsa-deploy run --help"]),
        (("run", "--nonsense"), ["error: No such option '--nonsense'.", "  fix: infsa-deploy run --help"]),
        (
            ("export", "--image-size", "huge"),
            [
                "error: --image-size: image size 'huge' is not valid.",
                "  why: it is one number, or height x width, in pixels.",
                "  fix: write 224 or 480x640.",
            ],
        ),
    ],
)
def test_errors_have_one_style(run, arguments, lines):
    code, out, err = run(*arguments)
    assert (code, out, err.splitlines()) == (2, "", lines)


def test_no_command_is_a_question_for_help(run):
    _, out, err = run()
    assert (out + err).startswith("Usage: infsa-deploy [OPTIONS] COMMAND")
    assert "error:" not in err
