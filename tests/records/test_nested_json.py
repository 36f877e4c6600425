"""JSON nested too deep for Python's reader is a readable error, whichever file it is in."""

from __future__ import annotations

import pytest

from infsa_deploy.bulk.job import JOB, read_job
from infsa_deploy.errors import DeployError, ModelError
from infsa_deploy.evaluate.boxes import read_boxes
from infsa_deploy.evaluate.journal import Journal
from infsa_deploy.records import results_file
from infsa_deploy.records.model import METADATA_KEY, read_metadata

DEEP = "[" * 200_000


def _journal(path):
    path.write_text(f"{{}}\n{DEEP}\n")
    Journal(path, {})


def _results(path):
    path.write_text(f"{DEEP}\n")
    results_file.read([path])


def _job(path):
    path.mkdir()
    (path / JOB).write_text(DEEP)
    read_job(path)


def _coco(path):
    path = path.with_suffix(".json")
    path.write_text(DEEP)
    read_boxes(path)


@pytest.mark.parametrize("read", [_journal, _results, _job, _coco])
def test_files(read, tmp_path):
    with pytest.raises(DeployError) as refused:
        read(tmp_path / "file")
    assert "it is nested too deep." in refused.value.why


def test_the_metadata_of_a_model():
    with pytest.raises(ModelError, match=r"metadata of m\.onnx cannot be read"):
        read_metadata({METADATA_KEY: DEEP}, "m.onnx")
