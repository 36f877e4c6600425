"""From the names of models and files to a report, and to a folder that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from infsa_deploy.errors import HostError, ModelError
from infsa_deploy.evaluate.datasets import DataSource, open_dataset
from infsa_deploy.evaluate.figures import draw_evaluation
from infsa_deploy.evaluate.journal import Journal
from infsa_deploy.evaluate.model import open_classifier
from infsa_deploy.evaluate.results import EvaluationReport
from infsa_deploy.evaluate.run import Plan, evaluate_models
from infsa_deploy.files import written_whole
from infsa_deploy.records import to_json


def evaluate_to_folder(
    models: Sequence[str],
    folder: Path | None,
    provider: str,
    threads: int | None,
    progress: Callable[[str], None],
    **options: Any,
) -> EvaluationReport:
    """Evaluate models by name; `folder`, if given, gets report.json, figures and one journal a model.

    Args:
        models: see open_classifier.
        folder: where results go and an interrupted evaluation is taken up again; None keeps nothing.
        provider, threads: see OrtSession.
        progress: called with what is being done.
        options: the fields of DataSource and of Plan.

    Raises:
        UsageError, ModelError, HostError: see open_classifier, open_dataset, evaluate_models, Journal.
    """
    source = DataSource(**{name: value for name, value in options.items() if name in DataSource.__annotations__})
    plan = Plan(**{name: value for name, value in options.items() if name in Plan.__annotations__})
    classifiers = [open_classifier(name, provider=provider, threads=threads) for name in models]
    samples = open_dataset(source, classifiers[0].classes)
    journals: list[Callable[[dict[str, Any]], Journal]] = []
    if folder is not None:
        _make(folder)
        stems = [f"{index}_{Path(name).stem}" for index, name in enumerate(models)]
        journals = [partial(Journal, folder / f"{stem}.jsonl") for stem in stems]
    report = evaluate_models(classifiers, samples, source.images, plan, journals=journals, progress=progress)
    if folder is not None:
        with written_whole(folder / "report.json") as scratch:
            scratch.write_text(to_json(report) + "\n", encoding="utf-8")
        draw_evaluation(report, folder)
    return report


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
