"""`infsa-deploy validate`: an exported model against its reference."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE, json_option, threads_option
from infsa_deploy.errors import ToleranceError


@click.command()
@click.argument("models", type=FILE, nargs=-1, required=True, metavar="MODEL...")
@click.option("--images", "real", type=click.IntRange(min=0), default=32, show_default=True, help="Real images.")
@click.option("--random", type=click.IntRange(min=0), default=8, show_default=True, help="Images of noise.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the noise.")
@click.option("--weights", type=FILE, help="The checkpoint, if it has moved since the export.")
@click.option("--module", help="package.module:factory of the reference, if the model was exported from Python.")
@click.option("--find-divergence", is_flag=True, help="Name the first layer that leaves the bound.")
@threads_option
@json_option
def command(
    models: tuple[Path, ...],
    real: int,
    random: int,
    seed: int,
    weights: Path | None,
    module: str | None,
    find_divergence: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compare each MODEL, an ONNX file or an engine, with its reference in float64, and each two with each other.

    Exits with 6 when one is out of the derived bound.

    --find-divergence compares layers. Of one MODEL: the stages of the eager reference (blocks, and modules in them),
    whose outputs are looked for among its tensors. Of two: tensors of the same name, the trusted MODEL first; take
    exports of one form. An engine is built again from the ONNX file beside it with every tensor as an output, on the
    GPU it is for; tensors that are outputs are not fused, so a fault of a fused kernel may not show.
    """
    from rich.console import Console

    from infsa_deploy import divergence
    from infsa_deploy.cli.tables import comparison_table, divergence_lines, pairs_table
    from infsa_deploy.pairwise import compare_pairs
    from infsa_deploy.records import to_json
    from infsa_deploy.validate import Plan, validate_model
    from infsa_deploy.validation_records import ValidationSet

    plan, progress = Plan(real, random, seed), Console(stderr=True)
    with progress.status("loading the model") as status:
        reports = tuple(
            validate_model(path, plan, weights=weights, module=module, threads=threads, progress=status.update)
            for path in models
        )
        pairs = tuple(compare_pairs(models, plan, threads)) if len(models) > 1 else ()
        found = divergence.find_divergence(reports, plan, weights=weights, module=module) if find_divergence else None
    if as_json:
        click.echo(to_json(ValidationSet(reports, pairs, found) if pairs or found else reports[0]))
    else:
        for report in reports:
            Console().print(comparison_table(report))
        if pairs:
            Console().print(pairs_table(pairs))
        for line in divergence_lines(found) if found else ():
            click.echo(line)
    failed = [(report.model, c) for report in reports for c in report.comparisons if not c.passed]
    if failed:
        model, worst = max(failed, key=lambda pair: pair[1].max_abs / pair[1].bound if pair[1].bound else float("inf"))
        raise ToleranceError(
            f"{model} is out of tolerance: output {worst.output!r}, {worst.inputs}.",
            f"its largest error is {worst.max_abs:.3g}; the bound is {worst.bound:.3g}.",
            "compare with an export made with --no-fold, and report the difference.",
        )
