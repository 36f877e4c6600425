"""Option types shared by the commands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from infsa_deploy.config import (
    Trust,
    parse_bytes,
    parse_grid,
    parse_hops,
    parse_image_size,
    parse_shapes,
    parse_targets,
)
from infsa_deploy.errors import UsageError

FILE = click.Path(path_type=Path)


class _Finite(click.ParamType[float]):
    """A number; `nan` and `inf`, which Python's float reads, are none."""

    name = "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number.", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not finite.", param, ctx)
        return number


class _Parsed(click.ParamType[Any]):
    """A parameter read by one of our own parsers, whose UsageError gets the parameter's name."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            name = param.opts[0] if param else self.name
            raise UsageError(f"{name}: {error.what}", error.why, error.fix) from error


FINITE = _Finite()
IMAGE_SIZE: click.ParamType[Any] = _Parsed("H[xW]", parse_image_size)
GRID: click.ParamType[Any] = _Parsed("ROWSxCOLUMNS", parse_grid)
SHAPES: click.ParamType[Any] = _Parsed("NAME:SHAPE", parse_shapes)
TARGETS: click.ParamType[Any] = _Parsed("SM[,SM...]", parse_targets)
SIZE: click.ParamType[Any] = _Parsed("SIZE", parse_bytes)
HOPS: click.ParamType[Any] = _Parsed("T|inf", parse_hops)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def threads_option(
    help: str, name: str = "--threads", default: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option for a number of threads, which is cut down to the cores that may be used, with a warning."""

    def within_cores(ctx: click.Context, param: click.Parameter, given: int | None) -> int | None:
        from infsa_deploy.runtime.cores import thread_count

        typed = param.name and ctx.get_parameter_source(param.name) == ParameterSource.COMMANDLINE
        return thread_count(given, lambda text: click.echo(f"warning: {text}", err=True)) if typed else given

    kind, shown = click.IntRange(min=1), default is not None
    return click.option(name, type=kind, default=default, show_default=shown, callback=within_cores, help=help)


def trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which engines may run code on the processor; the command gets them as `trust`."""

    @functools.wraps(command)
    def gathering(trusted: tuple[str, ...], allow_host_code: bool, **given: Any) -> Any:
        return command(trust=Trust(trusted, allow_host_code), **given)

    opt_in = click.option("--allow-host-code", is_flag=True, help="Let engines run code on the processor.")
    hashes = click.option("--trust", "trusted", multiple=True, metavar="SHA256", help="Engine or library to trust.")
    return hashes(opt_in(gathering))


max_pixels_option = click.option(
    "--max-pixels", type=click.IntRange(min=1), help="Most pixels of a picture (default: what half the memory decodes)."
)
CPU_THREADS = "CPU threads (default, and at most: all cores)."


def shapes_option(name: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that may be repeated, an input's shape each time; the command gets one dictionary."""

    def merged(ctx: click.Context, param: click.Parameter, given: tuple[dict[str, Any], ...]) -> dict[str, Any]:
        return {name: shape for shapes in given for name, shape in shapes.items()}

    return click.option(name, type=SHAPES, multiple=True, callback=merged, help=help)


provider_option = click.option(
    "--provider",
    type=click.Choice(["cpu", "cuda", "openvino"]),
    default="cpu",
    show_default=True,
    help="What runs an ONNX file: ONNX Runtime on the CPU or with CUDA, or OpenVINO on the CPU.",
)
