"""The results file, cut off at every place where a process could have been killed."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.records.bench import (
    Ceilings,
    Cell,
    EnergySource,
    Machine,
    Predicted,
    Row,
    Run,
    Settings,
    Validation,
    Work,
)
from infsa_deploy.records.results_file import Results, append, claimed, read, read_to_continue

MACHINE = Machine("cpu", 2, 2**34, "Linux", ("A100, 500",), {"torch": "2"})
RUN = Run("t0", "bench", "0", MACHINE, Settings(threads=2), EnergySource(None, None, None, "no counter"), 0.5)
CEILINGS = Ceilings("t0", {"fp32": 1e11}, 1e10, {"fp32": "product", "copy": "copy"})
ROW = Row(
    "eager",
    "about",
    "eager",
    "fp32",
    "ok",
    rounds_ms=((1.0, 1.5), (2.0,)),
    warm_up_calls=3,
    stable=True,
    work=Work({"fp32": 10}, 1, 2, 3, None),
    predicted=(Predicted("h100", 0.1, "memory"),),
)
CELL = Cell("t0", "m", ModelSource(model="m", image_size=(16, 16)), 16, 16, 1, 5, (ROW,), rounds=2)
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
    ends = {at + step for at, byte in enumerate(content) if byte == 10 for step in range(-2, 4)}
    for end in sorted({*ends, *range(0, len(content), 61)} & set(range(len(content) + 1))):
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
    for start, settings in (("t1", replace(RUN.settings, device="cuda")), ("t2", replace(RUN.settings, turn_s=2.0))):
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


def test_a_cell_is_there_with_all_who_are_asked_for(written):
    found, key = read([written]), CELL.key
    with_file = replace(CELL, rows=(replace(ROW, file_sha256="abc"),))
    assert found.has(key, {"eager": None})
    assert not found.has(key, {"eager": None, "softmax": None})
    assert not found.has((*key[:3], 2), {"eager": None})
    assert replace(found, cells=(with_file,)).has(key, {"eager": "abc"})
    assert not replace(found, cells=(with_file,)).has(key, {"eager": "of another file"})


def test_a_file_is_continued_on_its_machine_with_its_settings(written, tmp_path):
    assert read_to_continue(written, MACHINE, RUN.settings) == read([written])
    assert read_to_continue(tmp_path / "new.jsonl", MACHINE, RUN.settings) == Results((), (), (), ())
    with pytest.raises(UsageError, match="another machine"):
        read_to_continue(written, replace(MACHINE, cores=3), RUN.settings)
    with pytest.raises(UsageError, match="other settings"):
        read_to_continue(written, MACHINE, replace(RUN.settings, threads=1))


def test_a_run_that_measured_nothing_binds_no_one(written):
    """One that ended at once, such as for a GPU where there is none, leaves its record and no cell."""
    before = read([written])
    append(written, replace(RUN, started="ended at once", settings=replace(RUN.settings, device="cuda")))
    assert read_to_continue(written, MACHINE, RUN.settings) == before


def test_two_at_once_on_one_file(tmp_path):
    output = tmp_path / "results.jsonl"
    with claimed(output) as folder:
        with pytest.raises(UsageError, match="another benchmark"), claimed(output):
            pass
        assert folder.is_dir()
    assert not folder.exists()
    (folder / "left by one that was killed").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), claimed(output):
        raise KeyboardInterrupt
    assert not folder.exists()
