"""`infsa-deploy bench`: throughput, latency, memory and energy against the eager model."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from infsa_deploy.cli.parameters import FILE, IMAGE_SIZE, json_option, threads_option

if TYPE_CHECKING:
    from infsa_deploy.records.bench import Settings

LADDER = (224, 384, 512, 1024, 2048, 4096, 9216)  # the paper's resolutions, and steps on the way there
QUICK = "quick run: 2 short rounds, so its numbers are rough. Leave out --quick for numbers to rely on."


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
@click.option("--quick", is_flag=True, help="Two short rounds, in a minute: the numbers are rough.")
@click.option("--no-energy", is_flag=True, help="Leave energy out.")
@click.option("-o", "--output", type=FILE, default=Path("bench.jsonl"), show_default=True, help="Results, continued.")
@threads_option("CPU threads (default, and at most: all usable cores).")
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
    from infsa_deploy.bench.run import BenchRequest, run_bench
    from infsa_deploy.cli.output.bench import as_json as render
    from infsa_deploy.cli.output.bench import bench_progress, print_cells
    from infsa_deploy.errors import DeployError
    from infsa_deploy.records.bench import FAILED

    typed = shlex.join(["infsa-deploy", *sys.argv[1:]])
    sizes += sweep_sizes(sweep) if sweep else ()
    settings = _settings(threads, device, quick=quick, energy=not no_energy)
    request = BenchRequest(settings=settings, sizes=sizes, command=typed, **asked)
    if quick:
        click.secho(QUICK, fg="yellow", bold=True, err=True)
    with bench_progress() as progress:
        results = run_bench(request, progress)
    if as_json:
        click.echo(render(results))
    else:
        print_cells(results)
    broken = [
        f"{cell.model} {cell.size} batch {cell.batch}, {row.contender}: {row.reason}"
        for cell in results.cells
        for row in cell.rows
        if row.status == FAILED
    ]
    if broken:
        raise DeployError("some points failed.", "; ".join(broken), f"the others are in {request.output}.")


def _settings(threads: int | None, device: str, *, quick: bool, energy: bool) -> Settings:
    """The usual settings, or short ones; threads default to the usable cores."""
    from infsa_deploy.records.bench import Settings
    from infsa_deploy.runtime.cores import usable_cores

    chosen = Settings(threads=threads or usable_cores(), device=device, energy=energy)
    if not quick:
        return chosen
    return replace(chosen, quick=True, fewest_rounds=2, most_rounds=2, turn_s=0.2, warm_up_calls=5, slow_call_s=2.0)


def sweep_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Choose the sizes of LADDER from `A:B`, both ends included; UsageError when there are none."""
    from infsa_deploy.config import parse_image_size
    from infsa_deploy.errors import UsageError

    first, _, last = text.partition(":")
    (low, _), (high, _) = parse_image_size(first), parse_image_size(last or first)
    sizes = tuple((side, side) for side in LADDER if low <= side <= high)
    if not sizes:
        steps = ", ".join(map(str, LADDER))
        raise UsageError(f"sweep {text!r} holds no size.", f"a sweep takes steps out of {steps}.", "write 224:2048.")
    return sizes
