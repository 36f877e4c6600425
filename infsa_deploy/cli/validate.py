"""`infsa-deploy validate`: an exported model against its reference."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE, json_option, threads_option
from infsa_deploy.errors import ToleranceError


@click.command()
@click.argument("model", type=FILE)
@click.option("--images", "real", type=click.IntRange(min=0), default=32, show_default=True, help="Real images.")
@click.option("--random", type=click.IntRange(min=0), default=8, show_default=True, help="Images of noise.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the noise.")
@click.option("--weights", type=FILE, help="The checkpoint, if it has moved since the export.")
@click.option("--module", help="package.module:factory of the reference, if the model was exported from Python.")
@threads_option
@json_option
def command(
    model: Path,
    real: int,
    random: int,
    seed: int,
    weights: Path | None,
    module: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compare MODEL with its reference in float64; exit with 6 when it is out of the derived bound."""  # fmt: skip
    from rich.console import Console

    from infsa_deploy.cli.tables import comparison_table
    from infsa_deploy.records import to_json
    from infsa_deploy.validate import Plan, validate_model

    progress = Console(stderr=True)
    with progress.status("loading the model") as status:
        report = validate_model(
            model,
            Plan(real, random, seed),
            weights=weights,
            module=module,
            threads=threads,
            progress=lambda phase: status.update(phase),
        )
    if as_json:
        click.echo(to_json(report))
    else:
        Console().print(comparison_table(report))
    failed = [c for c in report.comparisons if not c.passed]
    if failed:
        worst = max(failed, key=lambda c: c.max_abs / c.bound if c.bound else float("inf"))
        raise ToleranceError(
            f"{model} is out of tolerance: output {worst.output!r}, {worst.inputs}.",
            f"its largest error is {worst.max_abs:.3g}; the bound is {worst.bound:.3g}.",
            "compare with an export made with --no-fold, and report the difference.",
        )
