"""Of many files, those that failed: each is told at once, the others are done, and the command ends with an error."""

from __future__ import annotations

import click

from infsa_deploy.errors import DeployError, ModelError


class Failures:
    """The files of one command that failed so far.

    Args:
        files: how many files the command was given.
    """

    def __init__(self, files: int) -> None:
        self._files, self._found = files, dict[str, DeployError]()

    def add(self, name: str, error: DeployError) -> None:
        """Tell of the file `name`; of a command's only file nothing is told before the end."""
        self._found[name] = error
        if self._files > 1:
            click.echo(f"{click.style('error:', fg='red')} {error}", err=True)

    def check(self) -> None:
        """Raise the error of an only file; ModelError naming the first few where some of several failed."""
        if self._files == 1:
            for error in self._found.values():
                raise error
        if self._found:
            names = ", ".join(list(self._found)[:5])
            raise ModelError(f"{len(self._found)} of {self._files} images were left out.", f"the first: {names}.")
