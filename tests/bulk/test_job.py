"""Cutting images into parts, and telling one job from another."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infsa_deploy.bulk.job import JOB, Part, open_job
from infsa_deploy.errors import ModelError, UsageError

IN_ORDER = ["0.png", "1.png", "2.png", "4.png", "5.png", "6.png", "deep/3.png"]


def rows(part: Part) -> list[str]:
    return pq.ParquetFile(part.file).read_row_group(part.row_group)["path"].to_pylist()[part.start : part.stop]


def test_a_folder_is_cut_into_parts_that_hold_each_image_once(model, images, tmp_path):
    (images / "notes.txt").write_text("no image")
    _, parts = open_job(tmp_path / "out", model, images, part_images=3)
    assert [rows(part) for part in parts] == [IN_ORDER[:3], IN_ORDER[3:6], IN_ORDER[6:]]
    assert [part.name for part in parts] == [f"part-00000{index}.parquet" for index in range(3)]
    assert {part.root for part in parts} == {str(images)}


def test_row_groups_of_several_files_are_cut_and_rows_counted_within_the_file(model, tmp_path):
    names = [f"{index}.png" for index in range(9)]
    folder = tmp_path / "tables"
    folder.mkdir()
    pq.write_table(pa.table({"path": names[:5]}), folder / "a.parquet", row_group_size=3)
    pq.write_table(pa.table({"path": names[5:]}), folder / "b.parquet")
    _, parts = open_job(tmp_path / "out", model, folder, part_images=2)
    assert [rows(part) for part in parts] == [names[:2], names[2:3], names[3:5], names[5:7], names[7:]]
    assert [part.row for part in parts] == [0, 2, 3, 0, 2]
    assert {part.root for part in parts} == {str(folder)}


def test_the_same_job_is_continued_even_from_a_copy_of_the_model(model, images, tmp_path):
    job, parts = open_job(tmp_path / "out", model, images)
    again, same = open_job(tmp_path / "out", model.rename(tmp_path / "moved.onnx"), images)
    assert (again.identity, same) == (job.identity, parts)


def test_results_in_the_folder_of_tables_are_no_images(model, tmp_path):
    pq.write_table(pa.table({"path": ["a.png"]}), tmp_path / "a.parquet")
    job, parts = open_job(tmp_path / "out", model, tmp_path)
    pq.write_table(pa.table({"path": ["a.png"]}), tmp_path / "out" / parts[0].name)
    again, same = open_job(tmp_path / "out", model, tmp_path)
    assert (again.identity, same) == (job.identity, parts)


def test_weights_beside_the_model_are_part_of_it(model, images, tmp_path):
    alone, _ = open_job(tmp_path / "alone", model, images)
    model.with_name(f"{model.name}.data").write_bytes(b"weights")
    beside, _ = open_job(tmp_path / "beside", model, images)
    assert alone.model_sha256 != beside.model_sha256


@pytest.mark.parametrize("change", ["model", "images", "part_images", "provider"])
def test_another_job_is_refused_and_says_how_it_differs(change, model, images, tmp_path):
    open_job(tmp_path / "out", model, images)
    described = (tmp_path / "out" / JOB).read_bytes()
    options = {"part_images": {"part_images": 7}, "provider": {"provider": "cuda"}}.get(change, {})
    if change == "model":
        model.write_bytes(model.read_bytes() + b"\n")
    if change == "images":
        (images / "more.png").write_bytes(b"new")
    with pytest.raises(UsageError, match="another job") as refused:
        open_job(tmp_path / "out", model, images, **options)
    assert change in refused.value.why
    assert (tmp_path / "out" / JOB).read_bytes() == described


def test_a_parquet_file_whose_content_changed_is_other_images(model, tmp_path):
    source = tmp_path / "images.parquet"
    pq.write_table(pa.table({"path": ["a.png", "b.png"]}), source)
    open_job(tmp_path / "out", model, source)
    pq.write_table(pa.table({"path": ["a.png", "c.png"]}), source)
    with pytest.raises(UsageError, match="another job"):
        open_job(tmp_path / "out", model, source)


def test_what_holds_no_images_is_refused(model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no Parquet")
    pq.write_table(pa.table({"file": ["a.png"]}), tmp_path / "other.parquet")
    for source, message in {
        "empty": "no images in",
        "missing": "no images in",
        "text.parquet": "is no Parquet file",
        "other.parquet": "has no column path",
    }.items():
        with pytest.raises(UsageError, match=message):
            open_job(tmp_path / "out", model, tmp_path / source)
    assert not (tmp_path / "out").exists()


def test_a_missing_model_is_said_first(tmp_path, images):
    with pytest.raises(ModelError, match="does not exist"):
        open_job(tmp_path / "out", tmp_path / "no.onnx", images)


def test_a_name_that_is_no_text_is_refused(model, images, tmp_path):
    with open(os.fsencode(images) + b"/\xff.png", "wb"):
        pass
    with pytest.raises(UsageError, match="cannot be listed"):
        open_job(tmp_path / "out", model, images)


def test_parts_without_a_description_and_a_damaged_description_are_refused(model, images, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-000000.parquet").touch()
    with pytest.raises(UsageError, match="unknown job"):
        open_job(out, model, images)
    (out / JOB).write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        open_job(out, model, images)
