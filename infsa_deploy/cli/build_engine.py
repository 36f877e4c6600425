"""`infsa-deploy build-engine`: an exported model to a TensorRT engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import FILE, SIZE, TARGETS, json_option, shapes_option
from infsa_deploy.config import BACKENDS, PRECISIONS, EngineConfig


@click.command()
@click.argument("model", type=FILE, required=False)
@click.option("--fp16", is_flag=True, help="Retype weights and activations to float16.")
@click.option("--bf16", is_flag=True, help="Retype them to bfloat16.")
@click.option("--int8", is_flag=True, help="int8 where there are Q/DQ nodes, else float16.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True)
@click.option("--target", "targets", type=TARGETS, default=(), help="e.g. sm80,sm89 (default: the GPU here, or sm80).")
@click.option("--plugins", default="on", show_default=True, help="on, off, or the path of a plugin library.")
@shapes_option("--min-shapes", help="image:1x3x224x224 or image:[1,3,224,224].")
@shapes_option("--opt-shapes", help="Likewise: the shape served best (default: batch 8).")
@shapes_option("--max-shapes", help="Likewise: the largest shape (default: batch 32).")
@click.option("--workspace", "workspace_bytes", type=SIZE, help="Scratch memory of a layer, e.g. 4G.")
@click.option("--opt-level", "optimization_level", type=click.IntRange(0, 5), help="The builder's effort.")
@click.option("--timing-cache", type=FILE, help="Keep kernel timings in this file (TensorRT).")
@click.option("--version-compatible", is_flag=True, help="Load in later versions too (TensorRT).")
@click.option("--hardware-compatible", is_flag=True, help="Run on every GPU from Ampere on (TensorRT).")
@click.option("--embed-plugins/--no-embed-plugins", default=None, help="Plugin library in the plan (default).")
@click.option("--strip", is_flag=True, help="Leave the weights out of the plan.")
@click.option("--refit", is_flag=True, help="Let weights be replaced later.")
@click.option("-o", "--output", type=FILE, help="Engine to write (default: beside the model).")
@click.option("--dry-run", is_flag=True, help="Parse, check types and plugins, predict memory; build nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Show TensorRT's log, all of it.")
@json_option
def command(
    model: Path | None, plugins: str, output: Path | None, dry_run: bool, verbose: bool, as_json: bool, **options: Any
) -> None:
    """Build a TensorRT engine from the ONNX file MODEL (default: the newest export in ./artifacts)."""
    asked = [precision for precision in PRECISIONS if options.pop(precision)]
    if len(asked) > 1:
        raise click.UsageError(f"--{' and --'.join(asked)} cannot be combined: an engine has one of these types.")
    from rich.console import Console

    from infsa_deploy.cli.output.engines import engine_table
    from infsa_deploy.cli.output.progress import listening
    from infsa_deploy.engine.from_export import build, default_engine, forecast, newest_export
    from infsa_deploy.records.codec import to_json

    library = None if plugins in ("on", "off") else Path(plugins)
    config = EngineConfig(
        plugins=plugins != "off", plugin_library=library, precision=next(iter(asked), None), **options
    )
    if model is None:
        model = newest_export()
        click.echo(f"no model given: taking the newest export, {model}", err=True)
    path = output or default_engine(model, config)
    with listening(verbose) as listener:
        result = forecast(model, config, listener) if dry_run else build(model, path, config, listener)
    if dry_run and not as_json:
        Console().print(engine_table(result, f"{path} (not built)"))
    else:
        click.echo(to_json(result) if as_json else path)
