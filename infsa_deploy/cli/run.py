"""`infsa-deploy run`: run an exported model on pictures or arrays."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE, json_option, provider_option, threads_option


@click.command()
@click.argument("model", type=FILE)
@click.argument("images", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, help="Write every output to this .npz.")
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, help="Classes to name an image.")
@provider_option
@threads_option
@json_option
def command(
    model: Path,
    images: tuple[Path, ...],
    output: Path | None,
    top: int,
    provider: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Classify IMAGES (PNG, JPEG, TIFF, .npy; any size) with MODEL, an ONNX file or an engine.

    Outputs that are no logits are summarised. A model of several inputs takes arrays: NAME=FILE.npy for each, or a .npz
    that holds them by name; pictures are its image.
    """
    from infsa_deploy.cli.run_outputs import print_outputs, wants_arrays
    from infsa_deploy.records import to_json
    from infsa_deploy.runtime.model import load

    with load(model, provider=provider, threads=threads) as loaded:
        if output or wants_arrays(loaded, images):
            print_outputs(loaded, images, output, top, as_json)
            return
        predictions = loaded.predict(images, top, note=lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(to_json(predictions))
        return
    for prediction in predictions:
        ranked = zip(prediction.classes, prediction.scores, strict=True)
        click.echo(f"{prediction.image}: " + ", ".join(f"{name} ({score:.1%})" for name, score in ranked))
