"""Options of `export` that together make one record, which the command gets instead of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from infsa_deploy.cli.parameters import FILE, GRID, HOPS, IMAGE_SIZE
from infsa_deploy.config import DTYPES, VARIANTS, Dtype, ExportConfig, Hops, ModelSource

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _gathered(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Options whose values the command gets as one argument, `name`: what `make`, which takes them by name, returns."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gathering(**given: Any) -> Any:
            made = make(**{parameter: given.pop(parameter) for parameter in inspect.signature(make).parameters})
            return command(**given, **{name: made})

        decorated: Callable[..., Any] = gathering
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def _source(
    variant: str | None,
    model: str | None,
    weights: Path | None,
    module: str | None,
    image_size: tuple[int, int] | None,
    hops: Hops | None,
    power_iterations: int | None,
    heads: int | None,
    grid: tuple[int, int] | None,
    key: str | None,
) -> ModelSource:
    checkpoint = str(weights.resolve()) if weights else None
    return ModelSource(model, checkpoint, module, variant, heads, image_size, hops, power_iterations, grid, key)


def _form(
    batch: int | None,
    dynamic_size: bool,
    tile_tokens: int | None,
    dtype: Dtype,
    low_precision_io: bool,
    no_fold: bool,
    attention_maps: bool,
    require_ops: bool,
) -> ExportConfig:
    keep_io = not low_precision_io
    return ExportConfig(
        not no_fold, batch, dynamic_size, tile_tokens, dtype, None, keep_io, attention_maps, require_ops
    )


source_options = _gathered(
    "source",
    _source,
    click.option("--variant", type=click.Choice(VARIANTS), help="Attention; alone: that variant's trained model."),
    click.option("--model", help="Name of a zoo model, e.g. infvit_linear_4l."),
    click.option("--weights", type=FILE, help="Checkpoint: a file (.safetensors, .pt, .ckpt, ...) or a folder."),
    click.option("--key", help="Which weights, if the checkpoint holds several, e.g. model_ema."),
    click.option("--module", help="Your own nn.Module, as package.module:factory."),
    click.option("--image-size", type=IMAGE_SIZE, help="Height[xwidth] in pixels; positions are interpolated."),
    click.option("--hops", type=HOPS, help="Neumann hops of pure attention."),
    click.option("--power-iterations", type=click.IntRange(min=1), help="Power iterations of linear attention."),
    click.option("--heads", type=click.IntRange(min=1), help="Number of heads, where the checkpoint does not say."),
    click.option("--grid", type=GRID, help="Patches a checkpoint was trained on, if it does not say (else square)."),
)
form_options = _gathered(
    "form",
    _form,
    click.option("--batch", type=click.IntRange(min=1), help="Fix the batch size (default: any)."),
    click.option("--dynamic-size", is_flag=True, help="Any height and width in whole patches, in one model."),
    click.option("--tile-tokens", type=click.IntRange(min=1), help="Tokens a tile, for huge images on a CPU: 4096."),
    click.option(
        "--dtype", type=click.Choice(DTYPES), default="fp32", show_default=True, help="Weights and activations."
    ),
    click.option("--low-precision-io", is_flag=True, help="Narrow the model's inputs and outputs too."),
    click.option("--no-fold", is_flag=True, help="Keep the reference attention: the baseline to compare with."),
    click.option("--attention-maps", is_flag=True, help="Second output: what each layer and head looks at."),
    click.option("--require-ops", is_flag=True, help="Fail unless every attention is put on the custom ops."),
)
