"""What a model says of itself, and what was done to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import ModelError
from infsa_deploy.records.codec import from_json

METADATA_KEY = "infsa_deploy"


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
