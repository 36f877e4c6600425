"""`infsa-deploy inspect`: what an exported model holds."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE, json_option


@click.command()
@click.argument("model", type=FILE)
@json_option
def command(model: Path, as_json: bool) -> None:
    """Show variant, ops, parameters, FLOPs, shapes and metadata of MODEL."""
    from rich.console import Console

    from infsa_deploy.cli.tables import summary_table
    from infsa_deploy.export.summary import summarise
    from infsa_deploy.records import to_json

    summary = summarise(model)
    if as_json:
        click.echo(to_json(summary))
    else:
        Console().print(summary_table(summary))
