"""`infsa-deploy report`: benchmark results as Markdown, figures and one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE


@click.command()
@click.argument("results", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, default=Path("report"), show_default=True, help="Folder to write to.")
def command(results: tuple[Path, ...], output: Path) -> None:
    """Write tables and figures of RESULTS, the files that bench wrote."""
    from infsa_deploy.report.write import write_report

    for path in write_report(results, output):
        click.echo(path)
