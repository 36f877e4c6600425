"""What an export did, and what its graph holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from infsa_deploy.records.model import ModelMetadata


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
