"""Errors a user can act on, and the exit code each kind ends the command with.

Exit codes: 0 ok, 1 unforeseen, 2 usage, 3 environment, 4 model or export, 5 build, 6 numbers out of tolerance.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text with what would end a line, move the cursor or not be encoded written as an escape, `\\n` and the like.

    A file's name may hold all of these.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


class DeployError(Exception):
    """A failure in three parts: what happened, why, and what the user can do about it.

    Args:
        what: one sentence naming the thing that failed (a path, a key, a shape).
        why: the cause, as far as it is known.
        fix: what to type, install or change.
    """

    exit_code = 1

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [one_line(self.what)]
        if self.why:
            lines.append("  why: " + "\n       ".join(map(one_line, self.why.splitlines())))
        if self.fix:
            lines.append(f"  fix: {one_line(self.fix)}")
        return "\n".join(lines)


class UsageError(DeployError):
    """The request itself is wrong: an unknown name, an impossible size, a missing argument."""

    exit_code = 2


class HostError(DeployError):
    """This machine lacks something: a package, a driver, a library, room or permission on disk."""

    exit_code = 3


class ModelError(DeployError):
    """A model, checkpoint or input image cannot be used, or an export failed."""

    exit_code = 4


class BuildError(DeployError):
    """An engine could not be built as asked."""

    exit_code = 5


class ToleranceError(DeployError):
    """Outputs differ from the reference by more than the derived bound."""

    exit_code = 6
