"""scripts/bulk_ray.py: its errors, and every image exactly once whatever is killed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import pickle
import subprocess
import sys

import pytest

from infsa_deploy.bulk.job import open_job
from infsa_deploy.config import Trust
from infsa_deploy.errors import ModelError
from tests.scripts import bulk_kill


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("bulk_ray", bulk_kill.SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def called(script, monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["bulk_ray.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        script.main()
    return ended.value.code


def test_what_is_wrong_with_the_request_is_said_before_ray_starts(script, monkeypatch, tmp_path, capsys):
    model = tmp_path / "model.onnx"
    assert called(script, monkeypatch, model, tmp_path, "-o", tmp_path / "out") == 4
    assert "does not exist" in capsys.readouterr().err
    model.write_bytes(b"model")
    assert called(script, monkeypatch, model, tmp_path / "no", "-o", tmp_path / "out") == 2
    assert "no images in" in capsys.readouterr().err
    assert called(script, monkeypatch, model, tmp_path, "-o", tmp_path / "out", "--workers", "0") == 2
    assert not (tmp_path / "out").exists()


def test_a_package_that_lacks_is_named_with_its_extra(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "infsa_deploy.bulk.job", None)
    assert called(script, monkeypatch, tmp_path / "m.onnx", tmp_path, "-o", tmp_path / "out") == 3
    assert "infsa-deploy[ray]" in capsys.readouterr().err


def test_ray_that_cannot_be_imported_is_explained(script, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "ray":
                raise KeyError("libamd_smi.so")

    for name in [name for name in sys.modules if name == "ray" or name.startswith("ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(script.HostError, match="cannot be imported"):
        script.connected(None)


def test_a_worker_answers_with_an_error_that_can_be_acted_on(script, tmp_path):
    model, images, out = tmp_path / "model.onnx", tmp_path / "images", tmp_path / "out"
    model.write_bytes(b"model")
    images.mkdir()
    (images / "0.png").write_bytes(b"")
    _, (part,) = open_job(out, model, images)
    model.unlink()
    answer = pickle.loads(script.Worker(out, 1, Trust())(dataclasses.asdict(part))["answer"])
    assert isinstance(answer, ModelError)
    assert "is not the model" in answer.what
    assert answer.fix


def test_a_cluster_without_room_for_a_worker_is_noted(script, capsys):
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 4.0, "GPU": 1.0}}]
    script.note_capacity(nodes, {"CPU": 2, "GPU": 0.0})
    assert capsys.readouterr().err == ""
    script.note_capacity(nodes, {"CPU": 2, "GPU": 1.0})
    assert "no machine of the cluster has 2 CPU, 1 GPU" in capsys.readouterr().err


def test_ctrl_c_counts_even_where_python_drops_the_exception():
    command = [sys.executable, "-m", "tests.scripts.interrupted_answers", bulk_kill.SCRIPT]
    done = subprocess.run(command, cwd=bulk_kill.ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "interrupted by [2]\n"
    assert "Exception ignored" in done.stderr  # of the destructor: Python dropped it


@pytest.mark.parametrize(
    ("images", "part_images"),
    [pytest.param(300, 1, id="300"), pytest.param(1200, 2, id="1200", marks=pytest.mark.long)],
)
def test_each_image_is_one_row_though_workers_a_node_and_the_script_itself_are_stopped(tmp_path, images, part_images):
    """Ctrl-C comes half way; the lines of 130 parts more may wait in a pipe then, which must not be all the rest.

    Ray is for a process of its own. benchmarks/bulk_ray_kill.json has 10,000 images.
    """
    command = [sys.executable, "-m", "tests.scripts.bulk_kill", "-o", tmp_path / "found.json", "--kills", "1"]
    options = ["--images", str(images), "--part-images", str(part_images)]
    done = subprocess.run([*command, *options], cwd=bulk_kill.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["exit_codes"] == [130, 4]
    assert {event.split(" done: ")[1].split()[0] for event in found["events"]} == {"SIGKILL", "SIGINT", "a"}
    assert 0 < found["parts_found_when_continued"] < found["parts"] == (images + 2) // part_images
    assert found["result"] == {"rows": images + 2} | dict.fromkeys(found["result"].keys() - {"rows"}, 0)
