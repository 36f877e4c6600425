"""The command `infsa-deploy`: a literal table of commands, and one place where errors become exit codes."""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from typing import Any, NoReturn

import click

from infsa_deploy.errors import DeployError, HostError, UsageError
from infsa_deploy.version import __version__

COMMANDS = (
    "export",
    "build-engine",
    "run",
    "validate",
    "evaluate",
    "explain",
    "bench",
    "report",
    "package",
    "inspect",
    "doctor",
)

EXTRAS = {
    "torch": "export",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "safetensors": "export",
    "onnxruntime": "cpu",
    "sklearn": "evaluate",
    "tensorrt_rtx": "rtx",
    "tensorrt": "gpu",
    "openvino": "peers",
    "zeus": "energy",
    "matplotlib": "plot",
    "google": "serve",
    "grpc": "serve",
    "tritonclient": "serve",
}
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # help as an error; click before 8.2 has none
INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT and SIGTERM, as shells have it


class _Commands(click.Group):
    """Loads a command's module when it is named; the modules import click and nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"infsa_deploy.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="infsa-deploy")
def cli() -> None:
    """Take Vision Transformers with Infinite Self-Attention from PyTorch to deployment."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 unforeseen, 2 usage, 3 environment, 4 model, 5 build, 6 tolerance."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        sys.exit(cli.main(arguments, prog_name="infsa-deploy", standalone_mode=False) or 0)
    except click.exceptions.Abort as error:
        if isinstance(error.__cause__, EOFError):  # which click takes for Ctrl-D at a prompt; we have none
            _unforeseen()
        click.echo("interrupted; nothing half-written was left.", err=True)
        sys.exit(INTERRUPTED)
    except NO_ARGUMENTS as error:
        error.show()
        sys.exit(error.exit_code)
    except (DeployError, click.ClickException, ModuleNotFoundError, OSError) as error:
        known = _known(error)
        click.echo(f"{click.style('error:', fg='red')} {known}", err=True)
        sys.exit(known.exit_code)
    except Exception:
        _unforeseen()


def _terminated(number: int, frame: object) -> NoReturn:
    """Unwind, as Ctrl-C does: whoever stops a container or a job asks no less for a clean folder."""
    click.echo("terminated; nothing half-written was left.", err=True)
    sys.exit(TERMINATED)


def _unforeseen() -> NoReturn:
    traceback.print_exc()
    click.echo("this is a bug: please report it with the lines above.", err=True)
    sys.exit(1)


def _known(error: DeployError | click.ClickException | ModuleNotFoundError | OSError) -> DeployError:
    """Every error in one style: what, why, fix."""
    if isinstance(error, DeployError):
        return error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        return UsageError(
            " ".join(error.format_message().split()),
            "",
            f"{context.command_path if context else 'infsa-deploy'} --help",
        )
    return _of_this_machine(error)


def _of_this_machine(error: ModuleNotFoundError | OSError) -> DeployError:
    if isinstance(error, OSError):  # of stdout or the folder for temporary files; others are told where they arise
        what = f"{error.filename or 'a file or device'} cannot be used."
        return HostError(what, error.strerror or str(error), "see that it is there, that it may be used, and has room.")
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        raise error
    return HostError(
        f"this command needs the package {package}.",
        "it is not installed; infsa-deploy installs only what running needs.",
        f"pip install 'infsa-deploy[{EXTRAS[package]}]'",
    )
