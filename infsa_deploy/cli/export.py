"""`infsa-deploy export`: a reference model to an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import FILE, GRID, HOPS, IMAGE_SIZE, json_option
from infsa_deploy.config import DTYPES, VARIANTS, Dtype, ExportConfig, Int8, ModelSource


@click.command()
@click.option("--variant", type=click.Choice(VARIANTS), help="Attention; alone, it takes that variant's trained model.")
@click.option("--model", help="Name of a zoo model, e.g. infvit_linear_4l.")
@click.option("--weights", type=FILE, help="Checkpoint: .safetensors, .pt (torchvision keys work too).")
@click.option("--module", help="Your own nn.Module, as package.module:factory.")
@click.option("--image-size", type=IMAGE_SIZE, help="Height[xwidth] in pixels; positions are interpolated.")
@click.option("--hops", type=HOPS, help="Neumann hops of pure attention.")
@click.option("--power-iterations", type=click.IntRange(min=1), help="Power iterations of linear attention.")
@click.option("--heads", type=click.IntRange(min=1), help="Number of heads, where the checkpoint does not say.")
@click.option("--grid", type=GRID, help="Patches the checkpoint was trained on, where it does not say (else square).")
@click.option("--classes", type=FILE, help="Text file with one class name a line.")
@click.option("--mean", type=float, multiple=True, help="Channel mean of pixels in [0, 1]; once, or once a channel.")
@click.option("--std", type=float, multiple=True, help="Channel standard deviation, likewise.")
@click.option("--batch", type=click.IntRange(min=1), help="Fix the batch size (default: any).")
@click.option("--dynamic-size", is_flag=True, help="Any height and width in whole patches, in one model.")
@click.option("--tile-tokens", type=click.IntRange(min=1), help="Tokens a tile, for huge images on a CPU, e.g. 4096.")
@click.option("--dtype", type=click.Choice(DTYPES), default="fp32", show_default=True, help="Weights and activations.")
@click.option("--int8", is_flag=True, help="Int8 products: dynamic, or static Q/DQ when --calibration is given.")
@click.option("--calibration", help="Folder of images, or zoo: ranges for static int8 (engines).")
@click.option("--low-precision-io", is_flag=True, help="Narrow the model's inputs and outputs too.")
@click.option("--no-fold", is_flag=True, help="Keep the reference attention: the baseline to compare with.")
@click.option("--attention-maps", is_flag=True, help="Second output: what each layer and head looks at.")
@click.option("-o", "--output", type=FILE, help="ONNX file to write (default: artifacts/NAME.onnx).")
@json_option
def command(
    weights: Path | None,
    classes: Path | None,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    batch: int | None,
    dynamic_size: bool,
    tile_tokens: int | None,
    dtype: Dtype,
    int8: bool,
    calibration: str | None,
    low_precision_io: bool,
    no_fold: bool,
    attention_maps: bool,
    output: Path | None,
    as_json: bool,
    **source: Any,
) -> None:
    """Export a model to ONNX with custom ops.

    Alone, `infsa-deploy export --variant linear` exports the trained digits model of that variant.
    """  # fmt: skip
    from rich.console import Console

    from infsa_deploy.cli.tables import narrowing_notes
    from infsa_deploy.export.naming import default_output, relabelled
    from infsa_deploy.export.pipeline import export_reference
    from infsa_deploy.export.sources import load_reference
    from infsa_deploy.records import to_json
    from infsa_deploy.runtime.calibration import ZOO, calibration_batches

    if not (weights or source["model"] or source["module"]):
        click.echo("no model given: exporting the zoo's trained digits model. Your own: --weights FILE, ...", err=True)
    kind: Int8 | None = None if not int8 else "static" if calibration else "dynamic"
    config = ExportConfig(
        not no_fold, batch, dynamic_size, tile_tokens, dtype, kind, not low_precision_io, attention_maps
    )
    with Console(stderr=True).status("building the model") as status:
        origin = ModelSource(weights=str(weights.resolve()) if weights else None, **source)
        reference = relabelled(load_reference(origin), classes, mean, std)
        images = calibration_batches(calibration or ZOO, reference.image) if kind else ()
        path = output or default_output(reference, config)
        report = export_reference(reference, path, config, calibration=images, progress=status.update)
    for note in narrowing_notes(report):
        click.echo(note, err=True)
    click.echo(to_json(report) if as_json else report.path)
