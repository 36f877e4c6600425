"""`infsa-deploy inspect`: what an exported model or an engine holds."""

from __future__ import annotations

from pathlib import Path

import click

from infsa_deploy.cli.parameters import FILE, json_option


@click.command()
@click.argument("model", type=FILE)
@json_option
def command(model: Path, as_json: bool) -> None:
    """Show what MODEL holds: of an ONNX file ops, parameters, FLOPs, shapes; of an engine its sidecar and layers."""
    from infsa_deploy.errors import HostError
    from infsa_deploy.files import check_model_file

    check_model_file(model)
    from rich.console import Console

    from infsa_deploy.records.codec import to_json
    from infsa_deploy.runtime.sessions.artefact import is_engine

    if is_engine(model):
        from infsa_deploy.cli.output.engines import inspection_table
        from infsa_deploy.runtime.sessions.trt import inspect_engine

        inspection = inspect_engine(model)
        found, table = to_json(inspection), inspection_table(inspection, str(model))
    else:
        from infsa_deploy.cli.output.tables import summary_table

        try:
            from infsa_deploy.graph.cost.summary import summarise
        except (
            ModuleNotFoundError
        ) as error:  # of the extra `export`, which has PyTorch too, three small ones are enough
            why = "it is not installed, and reads the graphs of ONNX files."
            fix = "pip install 'infsa-deploy[inspect]'"
            raise HostError(f"inspect needs the package {error.name}.", why, fix) from error
        summary = summarise(model)
        found, table = to_json(summary), summary_table(summary)
    if as_json:
        click.echo(found)
    else:
        Console().print(table)
