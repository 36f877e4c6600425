"""`infsa-deploy run`: run an exported model on pictures or arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import (
    CPU_THREADS,
    FILE,
    json_option,
    max_pixels_option,
    provider_option,
    threads_option,
    trust_options,
)
from infsa_deploy.config import Trust


@click.command()
@click.argument("model", type=FILE)
@click.argument("images", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, help="Write every output to this .npz.")
@click.option("--top", type=click.IntRange(min=1), default=3, show_default=True, help="Classes to name an image.")
@provider_option
@threads_option(CPU_THREADS)
@max_pixels_option
@trust_options
@json_option
def command(
    model: Path,
    images: tuple[Path, ...],
    output: Path | None,
    top: int,
    as_json: bool,
    trust: Trust,
    **options: Any,
) -> None:
    """Classify IMAGES (PNG, JPEG, TIFF, .npy; any size) with MODEL, an ONNX file or an engine.

    An image that cannot be classified is named; the others are done, and the exit code is not 0.

    Outputs that are no logits are summarised. A model of several inputs takes arrays: NAME=FILE.npy for each, or a .npz
    that holds them by name; pictures are its image.
    """
    from infsa_deploy.cli.output.arrays import print_outputs, wants_arrays
    from infsa_deploy.cli.output.failures import Failures
    from infsa_deploy.errors import one_line
    from infsa_deploy.files import check_target
    from infsa_deploy.records.codec import to_json
    from infsa_deploy.runtime.model import load

    if output:
        arrays = [Path(str(file).partition("=")[2]) for file in images if "=" in str(file)]  # NAME=FILE
        check_target(output, [model, *images, *arrays])
    failures = Failures(len(images))
    with load(model, trusted_sha256=trust.sha256, allow_host_code=trust.host_code, **options) as loaded:
        if output or wants_arrays(loaded, images):
            print_outputs(loaded, images, output, top, as_json)
            return
        predictions = loaded.predict(
            images, top, note=lambda line: click.echo(one_line(line), err=True), failed=failures.add
        )
    if as_json:
        click.echo(to_json(predictions))
    for prediction in predictions if not as_json else ():
        ranked = zip(prediction.classes, prediction.scores, strict=True)
        named = ", ".join(f"{name} ({score:.1%})" for name, score in ranked)
        click.echo(one_line(f"{prediction.image}: {named}"))
    failures.check()
