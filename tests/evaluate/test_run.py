"""Whole evaluations of a model that reads one patch: textbook values in, bad input named, interruptions survived."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.evaluate.datasets import Sample
from infsa_deploy.evaluate.figures import _reliability, _removal
from infsa_deploy.evaluate.journal import Journal
from infsa_deploy.evaluate.results import EvaluationReport, Problem
from infsa_deploy.evaluate.run import Plan, evaluate_models, heads_of
from infsa_deploy.records.codec import from_json, to_json
from tests.evaluate.conftest import BOX, CONFIDENCE, GRID, PATCH, READ, OnePatchSession, on_the_patch, picture

P = GRID * GRID


class BlindSession(OnePatchSession):
    """Finds every picture dark."""

    def __call__(self, feeds):
        found = super().__call__(feeds)
        return found | {"logits": np.log([[CONFIDENCE, 1 - CONFIDENCE]] * len(found["logits"]))}


ATTENTION = Plan(attention=True, steps=P)


def test_textbook_values(classifier, samples):
    report = evaluate_models([classifier()], samples(5), "by hand", ATTENTION)
    (result,) = report.models
    assert (result.accuracy.top1.mean, result.accuracy.ece) == pytest.approx((1.0, 1 - CONFIDENCE))
    quality = result.attention
    drop = 2 * CONFIDENCE - 1
    for curves in quality.faithfulness:
        assert curves.morf_aoc.mean == pytest.approx(CONFIDENCE - drop / (2 * P))
        assert curves.lerf_auc.mean == pytest.approx(CONFIDENCE - drop / (2 * P))
        assert curves.morf_aoc.high - curves.morf_aoc.low == pytest.approx(0, abs=1e-12)
    assert (quality.roc_auc.mean, quality.pr_auc.mean, quality.pointing.mean) == (1.0, 1.0, 1.0)
    assert quality.pr_chance == pytest.approx(1 / P)
    assert from_json(EvaluationReport, to_json(report)) == report


def test_a_random_map_is_chance(classifier, samples):
    heats = np.random.default_rng(4).random((300, GRID, GRID))
    plan = Plan(attention=True, removal_images=0)
    report = evaluate_models([classifier(heats.__getitem__)], samples(300), "by hand", plan)
    quality = report.models[0].attention
    assert quality.roc_auc.low < 0.5 < quality.roc_auc.high
    # Rank uniform over 1..P: the mean of 1/rank is the harmonic number over P, its deviation below sqrt(pi^2/6/P).
    harmonic = sum(1 / k for k in range(1, P + 1)) / P
    assert quality.pr_auc.mean == pytest.approx(harmonic, abs=4 * np.sqrt(np.pi**2 / 6 / P / 300))
    assert quality.faithfulness[0].morf_aoc.images == 0


def test_bad_images_are_named_and_the_rest_goes_on(classifier, samples):
    def unreadable():
        raise ModelError("bad.png is a damaged image.", "truncated")

    given = samples(1000)
    given[500] = Sample("bad.png", unreadable, 1, (BOX,))
    given[501] = Sample("far.png", lambda: picture(True), 1, ((0, 0, 1000, 4),))
    given[502] = Sample("bare.png", lambda: picture(True), 1, None)
    given[503] = Sample("empty.png", lambda: picture(True), 1, ())
    report = evaluate_models([classifier()], given, "by hand", Plan(attention=True, removal_images=2, steps=2))
    assert report.models[0].images == 998
    assert report.models[0].attention.roc_auc.images == 996
    found = {problem.image: problem for problem in report.problems}
    assert found["bad.png"] == Problem("bad.png", "bad.png is a damaged image. truncated", fatal=True)
    assert "reaches out of the image" in found["far.png"].reason
    assert (found["far.png"].fatal, found["bare.png"].fatal, found["empty.png"].fatal) == (True, False, False)
    assert "no box" in found["bare.png"].reason
    assert "no pixel in its boxes" in found["empty.png"].reason
    assert len(found) == 4


def test_nothing_readable(classifier):
    def unreadable():
        raise ModelError("it is damaged.")

    with pytest.raises(ModelError, match="no image could be evaluated"):
        evaluate_models([classifier()], [Sample("a", unreadable, 1, None)], "by hand", Plan())


def test_models_are_compared_on_the_images_both_answered(classifier, samples):
    blind = dataclasses.replace(classifier(name="blind"), session=BlindSession(on_the_patch))
    given = samples(20)
    given[3] = Sample("dark, said to be bright", lambda: picture(False), 1, (BOX,))
    given[4] = Sample("unlabelled", lambda: picture(True), None, (BOX,))
    given.append(Sample("bright, said to be dark", lambda: picture(True), 0, (BOX,)))
    report = evaluate_models([classifier(), blind], given, "by hand", Plan())
    (compared,) = report.comparisons
    assert (compared.images, compared.only_model_right, compared.only_reference_right) == (20, 1, 18)
    assert compared.same_answer == pytest.approx(1 / 20)
    assert compared.difference.mean == pytest.approx((1 - 18) / 20)
    assert report.models[0].accuracy.top1.mean == pytest.approx(18 / 20)


def test_only_comparable_models_with_maps(classifier, samples):
    other = dataclasses.replace(classifier(), classes=("a", "b"))
    with pytest.raises(UsageError, match="classes differ"):
        evaluate_models([classifier(), other], samples(1), "by hand", Plan())
    bare = dataclasses.replace(classifier(), has_maps=False)
    with pytest.raises(ModelError, match="--attention-maps"):
        evaluate_models([bare], samples(1), "by hand", ATTENTION)
    assert evaluate_models([bare], samples(1), "by hand", Plan()).models[0].attention is None


def test_a_fixed_batch_is_filled_up(classifier, samples):
    model = classifier(batch=4)
    report = evaluate_models([model], samples(6), "by hand", Plan())
    assert (report.models[0].images, model.session.calls, model.session.images) == (6, 2, 8)


def test_an_interrupted_evaluation_goes_on(classifier, samples, tmp_path):
    path, given = tmp_path / "m.jsonl", samples(200)
    read: list[str] = []

    def noted(sample: Sample) -> Sample:
        def reading():
            read.append(sample.name)
            return sample.read()

        return Sample(sample.name, reading, sample.label, sample.boxes)

    def stop(phase: str) -> None:
        if "128" in phase:
            raise KeyboardInterrupt

    def journals(task):
        return Journal(path, task)

    with pytest.raises(KeyboardInterrupt):
        evaluate_models([classifier()], given, "by hand", Plan(), journals=[journals], progress=stop)
    path.write_text(path.read_text() + '{"image": "image 128", "lab')  # cut in the middle of a line
    report = evaluate_models([classifier()], [noted(s) for s in given], "by hand", Plan(), journals=[journals])
    assert sorted(read) == sorted(f"image {i}" for i in range(128, 200))
    assert report == evaluate_models([classifier()], given, "by hand", Plan())
    assert len(path.read_text().splitlines()) == 201
    good = path.read_text()
    path.write_text(good.replace('"image"', '"picture"', 1))
    with pytest.raises(UsageError, match="damaged"):
        evaluate_models([classifier()], given, "by hand", Plan(), journals=[journals])
    path.write_text(good)
    with pytest.raises(UsageError, match="another evaluation"):
        evaluate_models([classifier(name="other")], given, "by hand", Plan(), journals=[journals])
    with pytest.raises(UsageError, match="another evaluation"):
        evaluate_models([classifier()], given[1:], "by hand", Plan(), journals=[journals])


def test_an_image_that_was_mended_is_read_again(classifier, samples, tmp_path):
    def unreadable():
        raise ModelError("it is damaged.")

    good = samples(5)
    bad = [*good[:3], dataclasses.replace(good[3], read=unreadable), *good[4:]]

    def evaluated(given, model):
        journals = [lambda task: Journal(tmp_path / "m.jsonl", task)]
        return evaluate_models([model], given, "by hand", Plan(), journals=journals)

    assert [problem.image for problem in evaluated(bad, classifier()).problems] == ["image 3"]
    again = classifier()
    report = evaluated(good, again)
    assert (report.problems, report.models[0].images, again.session.images) == ((), 5, 1)


def test_models_are_told_apart_without_colour(classifier, samples):
    models = [classifier(name=name) for name in ("first", "second")]
    report = evaluate_models(models, samples(3), "by hand", ATTENTION)
    (reliability,), (blur, mean) = _reliability(report).axes, _removal(report).axes
    markers = [line.get_marker() for line in reliability.lines[1:]]  # after the diagonal
    assert len(set(markers)) == 2
    for panel in (blur, mean):
        looks = {(line.get_marker(), line.get_linestyle()) for line in panel.lines}
        assert len(looks) == len(panel.lines) == 4


def test_the_chosen_layer():
    maps = np.arange(2 * 3 * 2 * 2, dtype=np.float64).reshape(2, 3, 2, 2)
    np.testing.assert_array_equal(heads_of(maps, "last"), maps[1])
    np.testing.assert_array_equal(heads_of(maps, "0"), maps[0])
    np.testing.assert_array_equal(heads_of(maps, "mean"), (maps[0] + maps[1]) / 2)
    with pytest.raises(UsageError, match="layers 0 to 1"):
        heads_of(maps, "2")
    for layer in ("first", "-1", ""):
        with pytest.raises(UsageError, match="is not valid"):
            Plan(layer=layer)


def test_what_the_model_reads_is_where_the_box_is():
    y, x = (place * PATCH for place in READ)
    assert (x, y, x + PATCH, y + PATCH) == BOX
    assert on_the_patch().sum() == 1
