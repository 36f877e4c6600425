"""From the names of models and files to a report, and to a folder that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from infsa_deploy.config import Trust
from infsa_deploy.errors import HostError, ModelError
from infsa_deploy.evaluate.datasets import DataSource, open_dataset
from infsa_deploy.evaluate.figures import FIGURES, draw_evaluation
from infsa_deploy.evaluate.journal import Journal
from infsa_deploy.evaluate.model import open_classifier
from infsa_deploy.evaluate.results import EvaluationReport
from infsa_deploy.evaluate.run import Plan, evaluate_models
from infsa_deploy.files import check_apart, written_whole
from infsa_deploy.records.codec import to_json

REPORT = "report.json"


def evaluate_to_folder(
    models: Sequence[str],
    folder: Path | None,
    provider: str,
    threads: int | None,
    progress: Callable[[str], None],
    trust: Trust | None = None,
    **options: Any,
) -> EvaluationReport:
    """Evaluate models by name; `folder`, if given, gets report.json, figures and one journal a model.

    Args:
        models: see open_classifier.
        folder: where results go and an interrupted evaluation is taken up again; None keeps nothing.
        provider, threads: see OrtSession.
        progress: called with what is being done.
        trust: whether engines may run code on the processor.
        options: the fields of DataSource and of Plan.

    Raises:
        UsageError: a file that is read would be replaced.
        UsageError, ModelError, HostError: see open_classifier, open_dataset, evaluate_models, Journal.
    """
    stems = [f"{index}_{Path(name).stem}" for index, name in enumerate(models)]
    source = DataSource(**{name: value for name, value in options.items() if name in DataSource.__annotations__})
    plan = Plan(**{name: value for name, value in options.items() if name in Plan.__annotations__})
    if folder is not None:
        written = [folder / name for name in (REPORT, *FIGURES, *(f"{stem}.jsonl" for stem in stems))]
        check_apart(written, _read_files(models, source))
    classifiers = [open_classifier(name, provider=provider, threads=threads, trust=trust) for name in models]
    samples = open_dataset(source, classifiers[0].classes)
    journals: list[Callable[[dict[str, Any]], Journal]] = []
    if folder is not None:
        _make(folder)
        journals = [partial(Journal, folder / f"{stem}.jsonl") for stem in stems]
    report = evaluate_models(classifiers, samples, source.images, plan, journals=journals, progress=progress)
    if folder is not None:
        with written_whole(folder / REPORT) as scratch:
            scratch.write_text(to_json(report) + "\n", encoding="utf-8")
        draw_evaluation(report, folder)
    return report


def _read_files(models: Sequence[str], source: DataSource) -> Iterator[Path]:
    """Every file that an evaluation reads; of folders, all that is in them."""
    for path in filter(None, (*map(Path, models), Path(source.images), source.synsets, source.labels, source.boxes)):
        yield from path.rglob("*") if path.is_dir() else (path,)


def check_none_left_out(report: EvaluationReport) -> None:
    """Raise ModelError where an image could not be read or a box is wrong, naming the first few."""
    fatal = [problem for problem in report.problems if problem.fatal]
    if fatal:
        names = ", ".join(problem.image for problem in fatal[:5])
        raise ModelError(f"{len(fatal)} of {report.images} images were left out.", f"the first: {names}.")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the folder {folder}.", str(error), "choose another with -o.") from error
