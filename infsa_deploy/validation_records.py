"""Records of how a model compares: with its reference, with another model, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputComparison:
    """One output of a candidate against the float64 reference, over one set of inputs.

    Attributes:
        inputs: what the images were, and their size: `real 224x224`, `random 224x224`.
        max_abs: largest |candidate - reference|.
        relative: `max_abs` over the largest |reference|.
        cosine: smallest cosine similarity of an image's output with the reference.
        top1_agreement: share of images with the reference's first class.
        yardstick_max_abs: largest |yardstick - reference|; the yardstick is an eager run in the same precision.
        bound: what `max_abs` may be, from `yardstick_max_abs`.
    """

    output: str
    inputs: str
    images: int
    max_abs: float
    relative: float
    cosine: float
    top1_agreement: float
    yardstick_max_abs: float
    bound: float

    @property
    def passed(self) -> bool:
        """True when the error is within the bound; NaN never is."""
        return self.max_abs <= self.bound

    @property
    def share_of_bound(self) -> float:
        """How much of the bound the error is; infinite where nothing is allowed."""
        return self.max_abs / self.bound if self.bound else float("inf")


@dataclass(frozen=True)
class ValidationReport:
    """A model against its reference: one comparison an output and set of inputs.

    Attributes:
        yardstick: what the bound is derived from, in words.
    """

    model: str
    runtime: str
    dtype: str
    yardstick: str
    comparisons: tuple[OutputComparison, ...]
    passed: bool


@dataclass(frozen=True)
class PairComparison:
    """One output of two models on the same images; `max_abs` is the largest difference, `top1_agreement` a share."""

    first: str
    second: str
    output: str
    images: int
    max_abs: float
    top1_agreement: float


@dataclass(frozen=True)
class LayerDifference:
    """A layer's output in two models.

    Attributes:
        node: name of the node, or of the module where the model compared with is the reference.
        op: its operator, or the module's class.
        tensor: name of the tensor; of the nearest one to a module's output, empty where none has its shape.
        max_abs: the largest difference; None where that is no number, or there is no tensor.
        relative: the same over the largest value.
        bound_relative: what `relative` may be.
    """

    node: str
    op: str
    tensor: str
    max_abs: float | None
    relative: float | None
    bound_relative: float


@dataclass(frozen=True)
class Divergence:
    """Two models layer by layer.

    Attributes:
        layers: number of layers compared.
        first: the first layer above its bound, in the order in which they run, or None.
        worst: the layer furthest above its bound, or nearest to it.
    """

    base: str
    candidate: str
    layers: int
    first: LayerDifference | None
    worst: LayerDifference


@dataclass(frozen=True)
class ValidationSet:
    """Several artefacts of one model: against the reference, each two against each other, and where they part."""

    reports: tuple[ValidationReport, ...]
    pairs: tuple[PairComparison, ...]
    divergence: Divergence | None = None
