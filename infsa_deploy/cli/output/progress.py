"""What a long command tells while it runs: on a terminal a spinner, the phase and the time; in a pipe remarks only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from infsa_deploy.engine.build import Listener


@contextmanager
def listening(verbose: bool) -> Iterator[Listener]:
    """A listener that writes to stderr for the length of the block; with `verbose`, TensorRT's log as well."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def phase(text: str) -> None:
            progress.update(task, description=text)

        yield Listener(phase=phase, note=progress.console.print, log=progress.console.print, verbose=verbose)
