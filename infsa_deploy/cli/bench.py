"""`infsa-deploy bench`: throughput, latency, memory and energy against the eager model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import FILE, IMAGE_SIZE, json_option, threads_option


@click.command()
@click.argument("files", type=FILE, nargs=-1, metavar="[ARTEFACT]...")
@click.option("--model", "models", multiple=True, help="Model of the zoo, exported for the benchmark; repeatable.")
@click.option("--size", "sizes", type=IMAGE_SIZE, multiple=True, help="Height[xwidth] in pixels; repeatable.")
@click.option("--sweep", metavar="A:B", help="Sizes from A to B out of 224, 384, 512, 1024, 2048, 4096, 9216.")
@click.option("--batch", "batches", type=click.IntRange(min=1), multiple=True, default=(1,), show_default=True)
@click.option("--contender", "contenders", multiple=True, help="Only these beside eager and softmax; repeatable.")
@click.option("--baselines", is_flag=True, help="Linformer and Performer of the same size too.")
@click.option("--predict", multiple=True, help="Floor time on a device that is not here, e.g. a100-40gb; repeatable.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--quick", is_flag=True, help="Two short rounds: a rough idea, in a minute.")
@click.option("--no-energy", is_flag=True, help="Leave energy out.")
@click.option("-o", "--output", type=FILE, default=Path("bench.jsonl"), show_default=True, help="Results, continued.")
@threads_option("CPU threads (default: the cores that others leave free; at most: all cores).")
@json_option
def command(
    sizes: tuple[tuple[int, int], ...],
    sweep: str | None,
    device: str,
    quick: bool,
    no_energy: bool,
    threads: int | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure ARTEFACTs, or a model of the zoo, against the eager model, in one interleaved run."""
    from infsa_deploy.files import check_model_file, check_target

    for path in asked["files"]:  # before PyTorch is imported, which takes seconds
        check_model_file(path)
    check_target(asked["output"], asked["files"])
    from infsa_deploy.bench.plan import sweep as sweep_sizes
    from infsa_deploy.bench.run import Request, failures, run_bench
    from infsa_deploy.bench.settings import settings_for
    from infsa_deploy.cli.bench_tables import bench_progress, print_cells
    from infsa_deploy.errors import DeployError
    from infsa_deploy.records import to_json

    typed = shlex.join(["infsa-deploy", *sys.argv[1:]])
    sizes += sweep_sizes(sweep) if sweep else ()
    settings = settings_for(threads, device, quick=quick, energy=not no_energy)
    asked |= {"sizes": sizes, "quick": quick, "command": typed, "threads_asked": threads is not None}
    request = Request(settings=settings, **asked)
    with bench_progress() as progress:
        results = run_bench(request, progress)
    if as_json:
        click.echo(to_json(list(results.cells)))
    else:
        print_cells(results)
    if broken := failures(results.cells):
        raise DeployError("some points failed.", "; ".join(broken), f"the others are in {request.output}.")
