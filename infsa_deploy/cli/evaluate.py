"""`infsa-deploy evaluate`: accuracy and attention quality of models on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import CPU_THREADS, FILE, json_option, provider_option, threads_option, trust_options


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--data", "images", required=True, help="Folder of images (a folder a class, or --labels), or zoo.")
@click.option("--synsets", type=FILE, help="Class folders in the order of the logits, one a line.")
@click.option("--labels", type=FILE, help="One image a line: its name, then its class.")
@click.option("--boxes", type=FILE, help="Folder of Pascal VOC .xml, or a COCO .json.")
@click.option("--images", "limit", type=click.IntRange(min=1), help="At most so many images, spread over all.")
@click.option("--attention", is_flag=True, help="Attention quality too: removal curves, ROC, PR, pointing game.")
@click.option("--layer", default="mean", show_default=True, help="Maps of: mean of layers, last, or a number from 0.")
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps of a removal curve.")
@click.option("--removal-images", type=click.IntRange(min=1), help="Remove patches of so many images (default: all).")
@threads_option("Threads that read images.", "--workers", 2)
@provider_option
@click.option("-o", "--output", type=FILE, help="Folder for report.json, figures and what is known of each image.")
@threads_option(CPU_THREADS)
@trust_options
@json_option
def command(
    models: tuple[str, ...],
    output: Path | None,
    provider: str,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate MODELS on labelled images, side by side; each is compared with the first by McNemar's test.

    A model is an ONNX file, an engine, or a zoo model such as digits_linear (run eagerly, needs torch). With -o, an
    interrupted evaluation goes on where it was. Exit with 4 when an image could not be read or a box is wrong.
    """  # fmt: skip
    from rich.console import Console

    from infsa_deploy.cli.output.evaluation import evaluation_tables, problem_notes
    from infsa_deploy.evaluate.report import check_none_left_out, evaluate_to_folder
    from infsa_deploy.records.codec import to_json

    with Console(stderr=True).status("loading the models") as status:
        report = evaluate_to_folder(models, output, provider, threads, status.update, **options)
    for note in problem_notes(report):
        click.echo(note, err=True)
    if as_json:
        click.echo(to_json(report))
    else:
        for table in evaluation_tables(report):
            Console().print(table)
    check_none_left_out(report)
