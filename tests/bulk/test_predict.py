"""Predicting one part."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import infsa_deploy
from infsa_deploy.bulk import predict
from infsa_deploy.bulk.job import open_job
from infsa_deploy.bulk.predict import PartResult, PartWorker, finished, remove_scratch
from infsa_deploy.errors import HostError, ModelError


def predicted(out, model, images, **options) -> tuple[list[PartResult], list[dict]]:
    """Results of all parts, and all rows."""
    _, parts = open_job(out, model, images, **options)
    worker = PartWorker(out, threads=1)
    results = [worker(part) for part in parts]
    return results, [row for part in parts for row in pq.read_table(out / part.name).to_pylist()]


def wanted(model, pictures) -> list[tuple[str, float]]:
    with infsa_deploy.load(model, threads=1) as loaded:
        return [(found.classes[0], found.scores[0]) for found in loaded.predict(pictures, top=1)]


def test_rows_are_what_the_model_says_of_each_image(model, images, tmp_path):
    results, rows = predicted(tmp_path / "out", model, images)
    paths = ["0.png", "1.png", "2.png", "4.png", "5.png", "6.png", "deep/3.png"]
    assert [row["path"] for row in rows] == paths
    assert [(row["class"], row["score"]) for row in rows] == wanted(model, [images / path for path in paths])
    assert {row["error"] for row in rows} == {None}
    assert len({row["model"] for row in rows}) == 1
    assert [(result.images, result.unreadable) for result in results] == [(7, 0)]


@pytest.mark.parametrize("options", [{"static_batch": 3}, {"dynamic_size": True}])
def test_models_of_a_fixed_batch_and_of_any_size(options, tiny, export, images, tmp_path):
    model, _ = export(tiny("linear"), **options)
    (images / "1.png").write_bytes(b"damaged")
    _, rows = predicted(tmp_path / "out", model, images)
    good = [row for row in rows if row["error"] is None]
    assert len(good) == 6
    for row in good:
        ((name, score),) = wanted(model, [images / row["path"]])
        assert row["class"] == name
        assert row["score"] == pytest.approx(score, rel=1e-4)  # 9 bits above fp32's rounding of a logit near 1


def test_an_image_that_cannot_be_used_is_a_row_with_its_error(model, images, tmp_path, monkeypatch):
    (images / "1.png").write_bytes((images / "1.png").read_bytes()[:100])
    (images / "2.png").write_bytes(b"")
    (images / "4.png").write_bytes(b"text")
    results, rows = predicted(tmp_path / "out", model, images)
    errors = {row["path"]: row["error"] for row in rows if row["error"]}
    assert sorted(errors) == ["1.png", "2.png", "4.png"]
    assert [text in errors[path] for path, text in (("1.png", "damaged"), ("2.png", "empty"), ("4.png", "no image"))]
    assert [row["class"] is None and row["score"] is None for row in rows] == [bool(row["error"]) for row in rows]
    assert results[0].unreadable == 3


def test_whatever_a_decoder_raises_is_a_row_too(model, images, tmp_path, monkeypatch):
    read = predict.read_image

    def unlucky(picture, name):
        if name == "0.png":
            raise IndexError("out of a table")
        return read(picture, name)

    monkeypatch.setattr(predict, "read_image", unlucky)
    _, rows = predicted(tmp_path / "out", model, images)
    assert [row["error"] for row in rows if row["error"]] == ["0.png cannot be used. IndexError: out of a table"]


def test_a_part_without_one_good_image(model, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"")
    results, rows = predicted(tmp_path / "out", model, tmp_path / "bad")
    assert (results[0].images, results[0].unreadable, rows[0]["class"]) == (1, 1, None)


def test_encoded_images_in_a_struct_of_a_parquet_file(model, encoded, tmp_path):
    structs = [{"bytes": content, "path": f"{n}.png"} for n, content in enumerate(encoded)]
    structs[2] = {"bytes": None, "path": "gone.png"}
    structs[4] = {"bytes": encoded[4], "path": None}
    pq.write_table(pa.table({"image": structs, "label": list(range(7))}), tmp_path / "set.parquet", row_group_size=3)
    columns = {"path_column": "image.path", "bytes_column": "image.bytes"}
    _, rows = predicted(tmp_path / "out", model, tmp_path / "set.parquet", **columns)
    assert [row["path"] for row in rows] == ["0.png", "1.png", "gone.png", "3.png", "set.parquet:4", "5.png", "6.png"]
    assert [row["error"] for row in rows if row["error"]] == ["gone.png has no bytes. the column image.bytes is null."]
    assert [row["class"] for row in rows if row["class"]] == [
        name for n, (name, _) in enumerate(wanted(model, encoded)) if n != 2
    ]


def test_paths_in_a_parquet_file_start_where_it_lies(model, images, tmp_path):
    pq.write_table(pa.table({"path": ["0.png", str(images / "1.png"), "gone.png"]}), images / "list.parquet")
    (images / "list.parquet").rename(tmp_path / "images" / "list.parquet")
    _, rows = predicted(tmp_path / "out", model, images / "list.parquet")
    assert [bool(row["error"]) for row in rows] == [False, False, True]
    assert "gone.png does not exist" in rows[2]["error"]


def test_a_part_done_twice_is_the_same_file_and_one_there_is_not_done_again(model, images, tmp_path):
    job, (part,) = open_job(tmp_path / "out", model, images)
    first = PartWorker(tmp_path / "out", threads=1)(part)
    content = (tmp_path / "out" / part.name).read_bytes()
    (images / "0.png").unlink()
    assert PartWorker(tmp_path / "out", threads=1)(part) == dataclasses.replace(first, worker=None)
    assert (tmp_path / "out" / part.name).read_bytes() == content
    assert finished(tmp_path / "out", job.identity, part) == dataclasses.replace(first, worker=None)


@pytest.mark.parametrize("harm", ["torn", "empty", "of another job", "too short"])
def test_a_part_that_is_not_this_jobs_is_done_again(harm, model, images, tmp_path):
    job, (part,) = open_job(tmp_path / "out", model, images)
    worker, path = PartWorker(tmp_path / "out", threads=1), tmp_path / "out" / part.name
    worker(part)
    content, table = path.read_bytes(), pq.read_table(path)
    if harm == "of another job":
        pq.write_table(table.replace_schema_metadata({predict.IDENTITY: "x", predict.UNREADABLE: "0"}), path)
    elif harm == "too short":
        pq.write_table(table.slice(1), path)
    else:
        path.write_bytes(content[:-20] if harm == "torn" else b"")
    assert finished(tmp_path / "out", job.identity, part) is None
    assert worker(part).worker is not None
    assert path.read_bytes() == content


def test_what_a_killed_worker_began_is_no_part_and_is_removed_at_the_end(model, images, tmp_path):
    job, (part,) = open_job(tmp_path / "out", model, images)
    scratch = tmp_path / "out" / f".{part.name}.abc"
    scratch.mkdir()
    (scratch / part.name).write_bytes(b"PAR1")
    assert finished(tmp_path / "out", job.identity, part) is None
    remove_scratch(tmp_path / "out")
    assert not scratch.exists()


def test_a_part_that_ends_every_worker_stops_the_job(model, images, tmp_path):
    _, (part,) = open_job(tmp_path / "out", model, images)
    worker = PartWorker(tmp_path / "out", threads=1)
    for attempt in range(predict.MOST_ATTEMPTS):
        (tmp_path / "out" / f".{part.name}.{attempt}").mkdir()
    with pytest.raises(HostError, match=f"part 0 has ended {predict.MOST_ATTEMPTS} workers") as stopped:
        worker(part)
    assert "0.png to deep/3.png" in stopped.value.why
    (tmp_path / "out" / f".{part.name}.0").rmdir()
    assert worker(part).images == 7


def test_an_interruption_leaves_no_part(model, images, tmp_path, monkeypatch):
    _, (part,) = open_job(tmp_path / "out", model, images)

    def interrupted(table, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(predict.pq, "write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PartWorker(tmp_path / "out", threads=1)(part)
    assert not list((tmp_path / "out").glob("*part-*"))


def test_a_worker_with_another_model_or_version_refuses(model, images, tmp_path, monkeypatch):
    open_job(tmp_path / "out", model, images)
    with monkeypatch.context() as patched:
        patched.setattr(predict, "__version__", "0.0.0")
        with pytest.raises(HostError, match="another infsa-deploy"):
            PartWorker(tmp_path / "out", threads=1)
    model.write_bytes(model.read_bytes() + b"\n")
    with pytest.raises(ModelError, match="is not the model"):
        PartWorker(tmp_path / "out", threads=1)
