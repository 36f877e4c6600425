"""`infsa-deploy run`: classify images with an exported model."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE, json_option, provider_option, threads_option


@click.command()
@click.argument("model", type=FILE)
@click.argument("images", type=FILE, nargs=-1, required=True)
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, help="Classes to name an image.")
@provider_option
@threads_option
@json_option
def command(model: Path, images: tuple[Path, ...], top: int, provider: str, threads: int | None, as_json: bool) -> None:
    """Classify IMAGES (PNG, JPEG, TIFF, .npy; any size) with MODEL, an ONNX file or an engine."""
    from infsa_deploy.records import to_json
    from infsa_deploy.runtime.model import load

    with load(model, provider=provider, threads=threads) as loaded:
        predictions = loaded.predict(images, top, note=lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(to_json(predictions))
        return
    for prediction in predictions:
        ranked = zip(prediction.classes, prediction.scores, strict=True)
        click.echo(f"{prediction.image}: " + ", ".join(f"{name} ({score:.1%})" for name, score in ranked))
