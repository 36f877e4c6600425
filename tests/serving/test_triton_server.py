"""A packaged model behind a real Triton server, on the CPU: the same answers as `run`, and none lost under load."""

from __future__ import annotations

import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from tritonclient.utils import InferenceServerException

import infsa_deploy
from infsa_deploy.cli import main
from tests.serving.soak import MODEL, PROTOCOLS, SAMPLES, encoded, infer, make_repository, serving, soak
from tests.test_readme import programs


@pytest.fixture(scope="module")
def repository(digits, tmp_path_factory):
    return make_repository(tmp_path_factory.mktemp("triton"), digits["linear"])


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository, repository.parent / "log") as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_are_those_of_run(server, digits, protocol, capsys):
    """One image a request: the server runs the same file on the same arrays, so every bit is the same."""
    with pytest.raises(SystemExit):
        main(["run", str(digits["linear"]), *map(str, SAMPLES), "--json", "--top", "10"])
    predictions = json.loads(capsys.readouterr().out)
    client = server.client(protocol)
    with infsa_deploy.load(digits["linear"], threads=1) as model:
        for path, prediction in zip(SAMPLES, predictions, strict=True):
            array = model.preprocess(path)
            logits, version = infer(client, protocol, MODEL, "image", array)
            assert version == "1"
            np.testing.assert_array_equal(logits, model({"image": array})["logits"])
            np.testing.assert_array_equal(infer(client, protocol, f"{MODEL}_image", "file", encoded(path))[0], logits)
            powers = np.exp(logits[0].astype(np.float64) - logits.max())
            ranked = [str(index) for index in np.argsort(-powers, kind="stable")]
            assert tuple(ranked) == tuple(prediction["classes"])
            # run takes all ten at once, which rounds elsewhere
            np.testing.assert_allclose(sorted(powers / powers.sum())[::-1], prediction["scores"], rtol=1e-4)


def test_a_jpeg(server, digits):
    file = io.BytesIO()
    Image.open(SAMPLES[3]).save(file, "JPEG", quality=95)
    with infsa_deploy.load(digits["linear"], threads=1) as model:
        expected = model({"image": model.preprocess(file.getvalue())})["logits"]
    sent = np.array([[file.getvalue()]], object)
    np.testing.assert_array_equal(infer(server.client("http"), "http", f"{MODEL}_image", "file", sent)[0], expected)


def test_errors_say_why(server):
    for model, name, array, message in (
        (f"{MODEL}_image", "file", np.array([[b"no image"]], object), "image 0 is no image"),
        (MODEL, "image", np.zeros((1, 1, 63, 64), np.float32), "unexpected shape"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            infer(server.client("grpc"), "grpc", model, name, array)


def test_the_program_in_the_readme(server, tmp_path, monkeypatch, capsys):
    (program,) = programs("Behind a server")
    shutil.copy(SAMPLES[7], tmp_path / "first.png")
    monkeypatch.chdir(tmp_path)
    here = program.replace("localhost:8000", server.http).replace("digits_linear_image", f"{MODEL}_image")
    exec(compile(here, "README.md", "exec"), {})
    assert re.fullmatch(r"\[\[b'[\d.]+:7:7'\]\]\n", capsys.readouterr().out)


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.long)])
def test_sixteen_clients(server, repository, digits, seconds):
    """benchmarks/triton_soak.md has longer ones."""
    try:
        found = soak(server, repository, {"1": digits["linear"], "2": digits["pure"]}, seconds=seconds, clients=16)
    finally:  # the other tests ask version 1
        for second in repository.glob("*/2"):
            shutil.rmtree(second)
        server.client("http").load_model(MODEL)
    assert found["failures"] == []
    assert found["malformed_refused"] > 0
    assert set(found["answered_by_version"]) == {"1", "2"}
    assert found["counted_by_server"]["2"]["requests"] == found["answered_by_version"]["2"]
    assert min(found["requests_a_run"]) > 1
