"""Records of how a model compares: with its reference, with another model, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OutputComparison:
    """One output of a candidate against the float64 reference, over one set of inputs.

    Attributes:
        inputs: what the images were, and their size: `real 224x224`, `random 224x224`.
        images: how many there were.
        edges: how many of them lie on an edge of the reference and were left out; see validation.tolerance.
        max_abs: largest |candidate - reference|.
        relative: `max_abs` over the largest |reference|.
        rms: root mean square of candidate - reference.
        cosine: smallest cosine similarity of an image's output with the reference.
        top1_agreement: share of images with the reference's first class; None of an output that is not [B, classes].
        yardstick_rms: root mean square error of the yardstick, the reference module in the artefact's type.
        plausible_rms: what a yardstick of that type may err by; one beyond it is not used.
        rms_bound: what `rms` may be, from `yardstick_rms` and the number of images.
        bound: what `max_abs` may be.
    """

    output: str
    inputs: str
    images: int
    edges: int
    max_abs: float
    relative: float
    rms: float
    cosine: float
    top1_agreement: float | None
    yardstick_rms: float
    plausible_rms: float
    rms_bound: float
    bound: float

    @property
    def plausible(self) -> bool:
        """True when the yardstick errs by no more than its type explains."""
        return self.yardstick_rms <= self.plausible_rms

    @property
    def passed(self) -> bool:
        """True when the errors are within bounds that a plausible yardstick gave; NaN never is."""
        return self.plausible and self.rms <= self.rms_bound and self.max_abs <= self.bound

    @property
    def share_of_bound(self) -> float:
        """How much of its bound the error is that is nearest to it; infinite where nothing is allowed."""
        pairs = ((self.rms, self.rms_bound), (self.max_abs, self.bound))
        return max(error / bound if bound else float("inf") for error, bound in pairs)


@dataclass(frozen=True)
class ValidationReport:
    """A model against its reference: one comparison an output and set of inputs.

    Attributes:
        yardstick: what the bounds are derived from, in words.
        rewrite: where the form that is exported differs from the reference already in float64; empty where it does not.
    """

    model: str
    runtime: str
    dtype: str
    yardstick: str
    comparisons: tuple[OutputComparison, ...]
    passed: bool
    rewrite: str = ""


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
        relative: root mean square of the difference, over that of the values.
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
