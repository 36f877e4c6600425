"""The results file, cut off at every place where a process could have been killed."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.measurements import (
    Ceilings,
    Cell,
    EnergySource,
    Latency,
    Machine,
    Predicted,
    Row,
    Run,
    Settings,
    Validation,
    Work,
)
from infsa_deploy.results_file import append, read

MACHINE = Machine("cpu", 2, 2**34, "Linux", ("A100, 500",), {"torch": "2"})
RUN = Run("t0", "bench", "0", MACHINE, Settings(threads=2), EnergySource(None, None, None, "no counter"), 0.5)
CEILINGS = Ceilings("t0", {"fp32": 1e11}, 1e10, {"fp32": "product", "copy": "copy"})
ROW = Row(
    "eager",
    "about",
    "eager",
    "fp32",
    "ok",
    latency=Latency(5, (1.0, 2.0), 1.5, None, None, 0.1, 10.0, 3, True),
    work=Work({"fp32": 10}, 1, 2, 3, None),
    predicted=(Predicted("h100", 0.1, "memory"),),
)
CELL = Cell("t0", "m", ModelSource(model="m", image_size=(16, 16)), 16, 16, 1, 5, (ROW,))
RECORDS = (RUN, CEILINGS, Validation("abc", True, "detail"), CELL, replace(CELL, batch=8))


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "results.jsonl"
    for record in RECORDS:
        append(path, record)
    return path


def test_what_is_written_is_read(written):
    found = read([written])
    assert (*found.runs, *found.ceilings, *found.validations, *found.cells) == RECORDS
    assert found.run_of(CELL) == RUN
    assert found.ceilings_of(CELL) == CEILINGS


def test_cut_off_anywhere_it_is_readable_and_goes_on(written):
    content = written.read_bytes()
    whole = 0
    for end in range(len(content) + 1):
        written.write_bytes(content[:end])
        found = read([written])
        count = len(found.runs) + len(found.ceilings) + len(found.validations) + len(found.cells)
        assert count == content[:end].count(b"\n")
        whole = max(whole, count)
    assert whole == len(RECORDS)


@pytest.mark.parametrize("missing", [1, 7, 300])
def test_appending_removes_a_torn_line(written, missing):
    written.write_bytes(written.read_bytes()[:-missing])
    append(written, replace(CELL, batch=32))
    assert [cell.batch for cell in read([written]).cells] == [1, 32]


def test_of_a_cell_measured_again_the_last_counts(written):
    append(written, replace(RUN, started="t1"))
    append(written, replace(CELL, run="t1"))
    assert sorted((cell.run, cell.batch) for cell in read([written]).cells) == [("t0", 8), ("t1", 1)]


def test_devices_and_settings_are_kept_apart(written, tmp_path):
    other = tmp_path / "other.jsonl"
    for start, settings in (("t1", replace(RUN.settings, device="cuda")), ("t2", replace(RUN.settings, rounds=2))):
        append(other, replace(RUN, started=start, settings=settings))
        append(other, replace(CELL, run=start))
    assert [cell.run for cell in read([written, other]).cells] == ["t0", "t0", "t1", "t2"]


def test_a_line_that_the_disk_takes_in_part_is_an_error_and_not_a_record(written):
    before, limits = read([written]), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(HostError, match="cannot write"):
            append(written, replace(CELL, batch=32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read([written]) == before
    append(written, replace(CELL, batch=32))
    assert [cell.batch for cell in read([written]).cells] == [1, 8, 32]


def test_machines_are_kept_apart(written, tmp_path):
    other = tmp_path / "other.jsonl"
    append(other, replace(RUN, started="t1", machine=replace(MACHINE, processor="another")))
    append(other, replace(CELL, run="t1"))
    assert len(read([written, other]).cells) == 3


def test_errors(tmp_path):
    with pytest.raises(UsageError):
        append(tmp_path / "nowhere" / "results.jsonl", RUN)
    with pytest.raises(ModelError):
        read([tmp_path / "missing.jsonl"])
    for content in ('{"kind": "cat", "record": {}}\n', "[1]\n", "text\n", '{"kind": "run", "record": {}}\n'):
        (tmp_path / "wrong.jsonl").write_text(content)
        with pytest.raises(ModelError, match=r"wrong\.jsonl"):
            read([tmp_path / "wrong.jsonl"])
