"""What comes out: plain records with a JSON round trip. Units are part of the names."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError

METADATA_KEY = "infsa_deploy"

R = TypeVar("R")


@dataclass(frozen=True)
class ImageSpec:
    """What the model's image input holds, and how a picture becomes it.

    A picture is scaled (bicubic) until it covers (height, width) / crop_fraction, cropped in the centre, taken to
    [0, 1], and normalised by `mean` and `std`, one value a channel. Where `multiple_of` is set the model takes any
    size whose sides are multiples of it, a picture keeps its own as nearly as that allows, and (height, width) is the
    size the model was made for.
    """

    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float = 1.0
    multiple_of: int | None = None


@dataclass(frozen=True)
class MemoryNeed:
    """What a run needs at its peak, as a polynomial in the number of tokens; activations are of one image.

    Attributes:
        weights_bytes: all weights.
        constant_bytes: activations that do not grow with the image; all of them for a model of one size.
        bytes_per_token: those that grow with its tokens.
        bytes_per_token_pair: those that grow with the square of its tokens.
        patch: side of a patch in pixels; None for a foreign module.
    """

    weights_bytes: int
    constant_bytes: float
    bytes_per_token: float = 0.0
    bytes_per_token_pair: float = 0.0
    patch: int | None = None

    def total_bytes(self, tokens: int | None = None, batch: int = 1) -> float:
        """Weights, and activations of `batch` images of `tokens` tokens each."""
        count = tokens or 0
        grown = self.bytes_per_token * count + self.bytes_per_token_pair * count**2
        return self.weights_bytes + batch * (self.constant_bytes + grown)


@dataclass(frozen=True)
class ModelMetadata:
    """What an exported model says of itself.

    Attributes:
        variant: `linear`, `pure`, `softmax`, or `none` of a model in which no attention of these was found.
        form: `ops` (attention on custom ops) or `reference` (the formula as it stands).
        architecture: the reference model's configuration, or its class for a foreign module.
        image: the image input.
        classes: class names, in the order of the output `logits` [B, K]; empty where there is no such output.
        weights_sha256: hash of the reference model's weights.
        source: how to build the reference model again.
        dtype: type of weights and activations; `int8` where matrix products are.
        memory: what a run needs.
        tool_version: version of infsa-deploy that wrote the file.
        tile_tokens: tokens a tile of a model that works in tiles.
        quantization_error: QuantizationReport.max_error of an int8 model.
    """

    variant: str
    form: str
    architecture: Mapping[str, Any]
    image: ImageSpec
    classes: tuple[str, ...]
    weights_sha256: str
    source: ModelSource
    dtype: str
    memory: MemoryNeed
    tool_version: str
    tile_tokens: int | None = None
    quantization_error: float | None = None


@dataclass(frozen=True)
class WeightLoss:
    """A weight tensor with elements outside the low type's range.

    Attributes:
        name: name of the initializer.
        elements: number of elements.
        to_zero: elements that were not zero and now are: below half of the smallest subnormal.
        saturated: finite elements beyond the largest number, set to that number.
    """

    name: str
    elements: int
    to_zero: int
    saturated: int


@dataclass(frozen=True)
class PrecisionReport:
    """What `retype` did.

    Attributes:
        dtype: `fp16` or `bf16`.
        keep_io: whether graph inputs and outputs stayed float32.
        weights: number of weight tensors converted.
        weights_bytes_before: size of those in float32.
        weights_bytes_after: their size now, with the copies that float32 nodes still read.
        casts: Cast nodes added.
        kept_fp32: why, for each node that stayed in float32, by node name.
        losses: the weights that lost elements.
    """

    dtype: str
    keep_io: bool
    weights: int
    weights_bytes_before: int
    weights_bytes_after: int
    casts: int
    kept_fp32: Mapping[str, str]
    losses: tuple[WeightLoss, ...]


@dataclass(frozen=True)
class QuantizationReport:
    """What quantising to int8 did, measured on the calibration images against float32.

    Attributes:
        kind: `dynamic` or `static`.
        images: number of calibration images.
        products: matrix products that could be int8.
        kept_float: those that were left in float, by node name.
        error_alone: relative error of the logits with one product quantised alone, by node name; empty where all could
            be int8 together.
        relative_error: root mean square error of the logits over their root mean square, all together.
        max_error: largest error of a logit over the largest logit.
        top1_agreement: share of images with the same first class.
        accuracy_before: accuracy in float32 on the digits test set; None for other models.
        accuracy_after: accuracy in int8, likewise.
    """

    kind: str
    images: int
    products: int
    kept_float: tuple[str, ...]
    error_alone: Mapping[str, float]
    relative_error: float
    max_error: float
    top1_agreement: float
    accuracy_before: float | None = None
    accuracy_after: float | None = None


@dataclass(frozen=True)
class ExportReport:
    """An export: the file, what it says of itself, and what narrowing its types cost (None where they were kept).

    Attributes:
        rewritten: qualified names of the attentions on custom ops.
        kept: why an attention was traced as it is, by qualified name.
        notices: what else the user must know, one line each.
    """

    path: str
    metadata: ModelMetadata
    precision: PrecisionReport | None = None
    quantization: QuantizationReport | None = None
    rewritten: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """One image's most likely classes, best first."""

    image: str
    classes: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True)
class OutputSummary:
    """What one output of a run holds; minimum, maximum and mean are of its finite numbers, None where there are none.

    Attributes:
        not_finite: how many of its numbers are NaN or infinite.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float | None
    maximum: float | None
    mean: float | None
    not_finite: int = 0


@dataclass(frozen=True)
class RunReport:
    """A run of a model that returns more than logits: its predictions, if it has any, and its other outputs."""

    predictions: tuple[Prediction, ...]
    outputs: tuple[OutputSummary, ...]


@dataclass(frozen=True)
class CheckResult:
    """One line of `doctor`: status is `ok`, `absent` (only some commands need it) or `problem`."""

    name: str
    status: str
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class GraphSummary:
    """What an ONNX file holds; FLOPs and bytes are of one image.

    Attributes:
        ops: node count by `domain.op_type`.
        parameters: number of weight elements.
        weights_bytes: their size as stored.
        flops: floating-point operations of MatMul, Gemm, Conv and the custom ops (a multiply-add is 2); None for a
            graph that works in tiles, which does not record the shapes of a round.
        flops_by_op: the same, by op type.
        bytes_moved: bytes that a run reads and writes at least, by weights, inputs, activations and outputs; None
            likewise.
    """

    model: str
    bytes: int
    opset: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    ops: Mapping[str, int]
    parameters: int
    weights_bytes: int
    flops: int | None
    flops_by_op: Mapping[str, int]
    bytes_moved: Mapping[str, int] | None
    metadata: ModelMetadata


def to_json(record: Any, *, indent: int | None = 2) -> str:
    """Render a record, or a list of records, as JSON; numbers that are none in it (NaN, infinities) become null."""
    plain = [dataclasses.asdict(r) for r in record] if isinstance(record, list) else dataclasses.asdict(record)
    return json.dumps(_finite(plain), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(kind: type[R], text: str) -> R:
    """Read a record of type `kind` back; ValueError, KeyError or TypeError when the text is no such record."""
    return decode(kind, parse_json(text))


def parse_json(text: str | bytes) -> Any:
    """What JSON text says; ValueError when it is none, or nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep.") from None


def decode(kind: type[R], value: Any) -> R:
    """A record of type `kind` from what JSON made of it; raises as from_json."""
    return typing.cast(R, _decode(kind, value))


def read_metadata(properties: Mapping[str, str], path: str | Path) -> ModelMetadata:
    """The metadata among a model's properties; ModelError when there is none, or none we can read."""
    if METADATA_KEY not in properties:
        raise ModelError(
            f"{path} was not written by infsa-deploy.",
            f"its metadata has no {METADATA_KEY!r} entry.",
            "export the PyTorch model with infsa-deploy export.",
        )
    try:
        return from_json(ModelMetadata, properties[METADATA_KEY])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the metadata of {path} cannot be read.", str(error), "export it again.") from error


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise TypeError(f"{kind.__name__} is an object, not {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        return kind(**{name: _decode(hints[name], item) for name, item in value.items()})
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_decode(k, item) for k, item in zip(kinds, value, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: _decode(arguments[1], item) for name, item in value.items()}
    if origin in (types.UnionType, typing.Union) and value is not None:
        composite = [k for k in arguments if typing.get_origin(k) is tuple or dataclasses.is_dataclass(k)]
        return _decode(composite[0], value) if composite and isinstance(value, list | dict) else value
    return value
