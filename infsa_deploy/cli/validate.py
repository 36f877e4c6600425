"""`infsa-deploy validate`: an exported model against its reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import CPU_THREADS, FILE, json_option, threads_option, trust_options
from infsa_deploy.config import Trust


@click.command()
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option("--images", "real", type=click.IntRange(min=0), default=64, show_default=True, help="Real images.")
@click.option("--random", type=click.IntRange(min=0), default=16, show_default=True, help="Images of noise.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the noise.")
@click.option("--weights", type=FILE, help="The checkpoint, if it has moved since the export.")
@click.option("--module", help="package.module:factory of the reference, if the model was exported from Python.")
@click.option("--find-divergence", is_flag=True, help="Name the first layer that leaves the bound.")
@threads_option(CPU_THREADS)
@trust_options
@json_option
def command(
    models: tuple[Path, ...],
    weights: Path | None,
    module: str | None,
    find_divergence: bool,
    threads: int | None,
    as_json: bool,
    trust: Trust,
    **plan_options: int,
) -> None:
    """Compare each MODEL, an ONNX file or an engine, with its reference in float64, and each two with each other.

    Exits with 6 when one is out of the derived bound.

    --find-divergence compares layers. Of one MODEL: the stages of the eager reference (blocks, and modules in them),
    whose outputs are looked for among its tensors. Of two: tensors of the same name, the trusted MODEL first; take
    exports of one form. An engine is built again from the ONNX file beside it with every tensor as an output, on the
    GPU it is for; tensors that are outputs are not fused, so a fault of a fused kernel may not show.
    """
    from infsa_deploy.files import check_model_file

    for path in models:  # before PyTorch is imported, which takes seconds
        check_model_file(path)
    from rich.console import Console

    from infsa_deploy.cli.output.tables import print_validation
    from infsa_deploy.records.codec import to_json
    from infsa_deploy.records.validation import ValidationSet
    from infsa_deploy.validation import divergence
    from infsa_deploy.validation.against_reference import check_tolerance, validate_models
    from infsa_deploy.validation.inputs import Plan
    from infsa_deploy.validation.pairwise import compare_pairs

    plan = Plan(**plan_options)
    reference: dict[str, Any] = {"weights": weights, "module": module}
    with Console(stderr=True).status("loading the model") as status:
        reports = validate_models(models, plan, threads=threads, progress=status.update, trust=trust, **reference)
        pairs = tuple(compare_pairs(models, plan, threads, trust)) if len(models) > 1 else ()
        found = divergence.find_divergence(reports, plan, **reference) if find_divergence else None
    if as_json:
        click.echo(to_json(ValidationSet(reports, pairs, found) if pairs or found else reports[0]))
    else:
        print_validation(reports, pairs, found)
    check_tolerance(reports)
