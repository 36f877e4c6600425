"""Option types shared by the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from infsa_deploy.config import parse_bytes, parse_grid, parse_hops, parse_image_size, parse_shapes, parse_targets
from infsa_deploy.errors import UsageError

FILE = click.Path(path_type=Path)


class _Parsed(click.ParamType[Any]):
    """A parameter read by one of our own parsers, whose UsageError becomes click's."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)


IMAGE_SIZE: click.ParamType[Any] = _Parsed("H[xW]", parse_image_size)
GRID: click.ParamType[Any] = _Parsed("ROWSxCOLUMNS", parse_grid)
SHAPES: click.ParamType[Any] = _Parsed("NAME:SHAPE", parse_shapes)
TARGETS: click.ParamType[Any] = _Parsed("SM[,SM...]", parse_targets)
SIZE: click.ParamType[Any] = _Parsed("SIZE", parse_bytes)
HOPS: click.ParamType[Any] = _Parsed("T|inf", parse_hops)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
threads_option = click.option("--threads", type=click.IntRange(min=1), help="CPU threads (default: all cores).")


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
