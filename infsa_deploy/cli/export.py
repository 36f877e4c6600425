"""`infsa-deploy export`: a reference model to an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from infsa_deploy.cli.export_options import form_options, source_options
from infsa_deploy.cli.parameters import FILE, FINITE, json_option
from infsa_deploy.config import ExportConfig, ModelSource


@click.command()
@source_options
@click.option("--classes", type=FILE, help="Text file with one class name a line.")
@click.option("--mean", type=FINITE, multiple=True, help="Channel mean of pixels in [0, 1]; once, or once a channel.")
@click.option("--std", type=FINITE, multiple=True, help="Channel standard deviation, likewise.")
@form_options
@click.option("--int8", is_flag=True, help="Int8 products: dynamic, or static Q/DQ when --calibration is given.")
@click.option("--calibration", help="Folder of images, or zoo: ranges for static int8 (engines).")
@click.option("-o", "--output", type=FILE, help="ONNX file to write (default: artifacts/NAME.onnx).")
@json_option
def command(
    source: ModelSource,
    form: ExportConfig,
    classes: Path | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    int8: bool,
    calibration: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Export a model to ONNX with custom ops.

    Alone, `infsa-deploy export --variant linear` exports the trained digits model of that variant.
    """  # fmt: skip
    from infsa_deploy.files import check_target

    _check_sources(source, classes)  # before PyTorch is imported, which takes seconds
    if output:
        given = Path(source.weights) if source.weights else None
        check_target(output, [given, classes], beside=[".data"], suffix=".onnx")
    if calibration and not int8:
        raise click.UsageError("--calibration is for --int8, which is not asked for.")
    from rich.console import Console

    from infsa_deploy.cli.output.tables import narrowing_notes
    from infsa_deploy.export.naming import default_output, relabelled
    from infsa_deploy.export.pipeline import export_reference
    from infsa_deploy.export.sources import load_reference
    from infsa_deploy.records.codec import to_json
    from infsa_deploy.runtime.pictures.folder import ZOO, calibration_batches

    if not (source.weights or source.model or source.module):
        click.echo("no model given: exporting the zoo's trained digits model. Your own: --weights FILE, ...", err=True)
    config = replace(form, int8="static" if calibration else "dynamic") if int8 else form

    note = partial(click.echo, err=True)
    with Console(stderr=True).status("building the model") as status:
        reference = relabelled(load_reference(source, note), classes, mean, std)
        images = calibration_batches(calibration or ZOO, reference.image) if int8 else ()
        path = output or default_output(reference, config)
        report = export_reference(reference, path, config, calibration=images, progress=status.update)
    for line in (*report.notices, *narrowing_notes(report)):
        note(line)
    click.echo(to_json(report) if as_json else report.path)


def _check_sources(source: ModelSource, classes: Path | None) -> None:
    """Raise ModelError or UsageError for what is named and cannot be there."""
    from infsa_deploy.errors import ModelError, UsageError

    if source.weights and not Path(source.weights).exists():
        raise ModelError(f"{source.weights} does not exist.", "", "give the path of a checkpoint with --weights.")
    if classes and not classes.is_file():
        raise UsageError(f"cannot read class names from {classes}.", "there is no such file.", "give a text file.")
    if source.module and not all(source.module.partition(":")):
        raise UsageError(
            f"--module {source.module} is not valid.", "it names no factory.", "write package.module:factory."
        )
