"""`infsa-deploy doctor`: what this machine has of what the commands need."""

from __future__ import annotations

import click

from infsa_deploy.cli.parameters import json_option
from infsa_deploy.errors import HostError


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Check packages, runtimes, driver, GPU and plugin library; exit with 3 when something is broken."""
    from rich.console import Console

    from infsa_deploy.cli.output.tables import checks_table
    from infsa_deploy.records.codec import to_json
    from infsa_deploy.runtime.doctor import examine

    results = examine()
    if as_json:
        click.echo(to_json(results))
    else:
        Console().print(checks_table(results))
    broken = [result for result in results if result.status == "problem"]
    if broken:
        names = ", ".join(result.name for result in broken)
        raise HostError(f"broken: {names}.", "see the lines marked problem.", broken[0].fix)
