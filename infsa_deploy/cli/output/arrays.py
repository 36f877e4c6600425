"""What `run` prints of a model that does more than classify pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from infsa_deploy.errors import one_line
from infsa_deploy.records.codec import to_json
from infsa_deploy.records.model import OutputSummary, Prediction, RunReport
from infsa_deploy.runtime.classify import name_classes
from infsa_deploy.runtime.feeds import read_feeds, split_by_name
from infsa_deploy.runtime.model import Model
from infsa_deploy.runtime.outputs import LOGITS, check_archive_name, has_logits, summarise, write_npz
from infsa_deploy.runtime.sessions.protocol import Arrays


def wants_arrays(model: Model, files: Sequence[Path]) -> bool:
    """Whether the model returns more than logits, takes more than pictures, or is given arrays by name."""
    plain = model.classifies and len(model.outputs) == 1
    return not plain or bool(split_by_name(files, model.inputs)[0])


def print_outputs(model: Model, files: Sequence[Path], output: Path | None, top: int, as_json: bool) -> None:
    """Run the model on `files`; print classes where it has logits, a line on each other output; write all to `output`.

    Raises: as read_feeds, Model and write_npz.
    """
    if output:
        check_archive_name(output)
    feeds = read_feeds(files, model.inputs, model.metadata.image, model.preprocess)
    found = model.run(next(iter(feeds.values()))) if len(feeds) == 1 else model(feeds)
    if output:
        write_npz(found, output)
    report = _report(model, files, found, top)
    if as_json:
        click.echo(to_json(report))
        return
    for prediction in report.predictions:
        ranked = zip(prediction.classes, prediction.scores, strict=True)
        named = ", ".join(f"{name} ({score:.1%})" for name, score in ranked)
        click.echo(one_line(f"{prediction.image}: {named}"))
    for summary in report.outputs:
        click.echo(_line(summary))


def _report(model: Model, files: Sequence[Path], found: Arrays, top: int) -> RunReport:
    classes = model.metadata.classes
    if not has_logits(model.outputs, classes):
        return RunReport((), tuple(summarise(found)))
    logits = found[LOGITS]
    pictures = [str(file) for file in split_by_name(files, model.inputs)[1]]
    names = pictures if len(pictures) == len(logits) else [f"row {index}" for index in range(len(logits))]
    rows: list[Prediction] = [name_classes(name, row, classes, top) for name, row in zip(names, logits, strict=True)]
    return RunReport(tuple(rows), tuple(summarise({n: array for n, array in found.items() if n != LOGITS})))


def _line(summary: OutputSummary) -> str:
    shape = f"{summary.name}: {summary.dtype} {list(summary.shape)}"
    if summary.minimum is None:
        return f"{shape}, no finite number"
    wrong = f", {summary.not_finite} NaN or infinite" if summary.not_finite else ""
    return f"{shape}, min {summary.minimum:.6g}, max {summary.maximum:.6g}, mean {summary.mean:.6g}{wrong}"
