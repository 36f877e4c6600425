"""`infsa-deploy package`: a model file to a server's model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import FILE, json_option


@click.command()
@click.argument("model", type=FILE)
@click.option("--format", "kind", type=click.Choice(["triton"]), default="triton", show_default=True)
@click.option("-o", "--output", "repository", type=FILE, required=True, help="Model repository; made where missing.")
@click.option("--name", help="Name of the model (default: the file's).")
@click.option(
    "--backend",
    type=click.Choice(["auto", "python"]),
    default="auto",
    show_default=True,
    help="auto: onnxruntime or tensorrt, by the file. python: this package, in Triton's python backend.",
)
@click.option("--max-batch", type=click.IntRange(min=1), help="Most images a run (default: the model's, at most 32).")
@click.option("--instances", type=click.IntRange(min=1), default=1, show_default=True, help="Copies that run at once.")
@click.option("--queue-delay-us", type=click.IntRange(min=0), default=1000, show_default=True, help="Wait for a batch.")
@click.option(
    "--provider", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="For ONNX files."
)
@click.option("--ensemble", is_flag=True, help="Also a model NAME_image, which takes the bytes of image files.")
@click.option("--plugins", type=FILE, help="Plugin library of an engine that does not hold it.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads on the server (default: all its cores).")
@json_option
def command(model: Path, kind: str, repository: Path, as_json: bool, **options: Any) -> None:
    """Put MODEL, an ONNX file or an engine, into an NVIDIA Triton model repository; again: a new version."""
    from infsa_deploy.config import ServingConfig
    from infsa_deploy.records.codec import to_json
    from infsa_deploy.serving.package import package

    report = package(model, repository, ServingConfig(**options))
    if report.kept:
        click.echo(f"config.pbtxt is kept; your options would change {', '.join(report.kept)}", err=True)
    click.echo(f"how to start a server: {repository / report.name / 'README.md'}", err=True)
    click.echo(to_json(report) if as_json else report.path)
