"""A packaged model behind a real Triton server, on the CPU: the same answers as `run`, and none lost under load."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from tritonclient.utils import InferenceServerException

import infsa_deploy
from infsa_deploy.cli import main
from tests.serving.soak import MODEL, PROTOCOLS, SAMPLES, encoded, infer, make_repository, serving, soak

pytestmark = pytest.mark.slow


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


def test_classes_by_name(server, digits):
    http = PROTOCOLS["http"]
    with infsa_deploy.load(digits["linear"], threads=1) as model:
        array = model.preprocess(SAMPLES[7])
    tensor = http.InferInput("image", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    wanted = http.InferRequestedOutput("logits", class_count=1)
    (best,) = server.client("http").infer(MODEL, [tensor], outputs=[wanted]).as_numpy("logits")[0]
    assert best.decode().split(":")[2] == "7"


def test_a_minute_of_sixteen_clients(server, repository, digits):
    found = soak(server, repository, {"1": digits["linear"], "2": digits["pure"]}, seconds=60, clients=16)
    assert found["failures"] == []
    assert found["malformed_refused"] > 0
    assert set(found["answered_by_version"]) == {"1", "2"}
    assert found["counted_by_server"]["2"]["request_success"] == found["answered_by_version"]["2"]
    assert min(found["requests_a_run"]) > 1
