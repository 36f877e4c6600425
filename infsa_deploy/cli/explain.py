"""`infsa-deploy explain`: what a model looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import CPU_THREADS, FILE, json_option, provider_option, threads_option, trust_options


@click.command()
@click.argument("model")
@click.argument("images", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, default=Path("explained"), show_default=True, help="Folder to write to.")
@click.option("--layer", default="mean", show_default=True, help="Maps of: mean of layers, last, or a number from 0.")
@provider_option
@threads_option(CPU_THREADS)
@trust_options
@json_option
def command(model: str, images: tuple[Path, ...], output: Path, layer: str, as_json: bool, **options: Any) -> None:
    """Draw what MODEL looks at over IMAGES: a figure (.png) and the raw maps (.npy) of each.

    MODEL is a file exported with --attention-maps, or a zoo model such as digits_linear (needs torch).
    """  # fmt: skip
    from rich.console import Console

    from infsa_deploy.errors import one_line
    from infsa_deploy.evaluate.explain import explain
    from infsa_deploy.evaluate.model import open_classifier
    from infsa_deploy.records.codec import to_json

    with Console(stderr=True).status("loading the model") as status:
        classifier = open_classifier(model, **options)
        found = explain(classifier, images, output, layer, progress=status.update)
    if as_json:
        click.echo(to_json(found))
        return
    for item in found:
        click.echo(one_line(f"{item.image}: {item.predicted} ({item.score:.1%}) -> {item.figure}"))
