"""What an op is, written once: names, axes, attributes, and the implementations that must agree on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from infsa_deploy.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxscript
    import torch

DOMAIN = "infsa"
VERSION = 1
TOKEN_AXIS = 1  # of every tensor with an axis N
PLUGIN_ATTRIBUTES = {"plugin_namespace": DOMAIN, "plugin_version": str(VERSION)}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor argument: its name and the meaning of each axis (products are written `H*D`)."""

    name: str
    axes: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class AttributeSpec:
    """A scalar attribute and the closed range it must lie in (`above` excludes the lower end).

    With a `default` a node may leave the attribute out.
    """

    name: str
    kind: Literal["int", "float"]
    minimum: float
    maximum: float
    above: bool = False
    default: float | None = None

    def check(self, op: str, value: float) -> None:
        """Raise UsageError unless `value` has the right kind and range."""
        right_kind = isinstance(value, int) if self.kind == "int" else isinstance(value, int | float)
        low = value > self.minimum if self.above else value >= self.minimum
        if isinstance(value, bool) or not (right_kind and low and value <= self.maximum):
            bracket = "(" if self.above else "["
            raise UsageError(
                f"{op}: {self.name}={value!r} is not valid.",
                f"it is a {self.kind} in {bracket}{self.minimum:g}, {self.maximum:g}].",
                f"pass {self.name} in that range.",
            )


@dataclass(frozen=True)
class PluginLimit:
    """What the GPU kernels of an op ask of an axis beyond what the op itself allows."""

    axis: str
    multiple_of: int
    maximum: int | None = None

    def broken_by(self, axes: Mapping[str, int]) -> str:
        """Say how the sizes break the limit; empty where they do not."""
        size = axes[self.axis]
        if size % self.multiple_of == 0 and (self.maximum is None or size <= self.maximum):
            return ""
        most = f" up to {self.maximum}" if self.maximum else ""
        return f"{self.axis}={size}, where the GPU plugin takes multiples of {self.multiple_of}{most}"


@dataclass(frozen=True)
class Contract:
    """The interface of one op in ONNX domain `infsa`, version 1.

    Every tensor of a node has one type out of float32, float16 and bfloat16, and accumulation is in float32.
    The eager implementation also takes float64 and then computes in float64 throughout.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    attributes: tuple[AttributeSpec, ...]
    outputs: tuple[TensorSpec, ...]
    plugin_limits: tuple[PluginLimit, ...] = ()

    @property
    def torch_name(self) -> str:
        """The op's name in `torch.ops`, for example `infsa::energy_pool`."""
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()
        return f"{DOMAIN}::{snake}"

    @property
    def torch_schema(self) -> str:
        """The schema of the PyTorch op: tensors first, then attributes, all by position."""
        tensors = [f"Tensor {spec.name}" for spec in self.inputs]
        scalars = [
            f"{spec.kind} {spec.name}" + ("" if spec.default is None else f"={spec.default}")
            for spec in self.attributes
        ]
        outputs = ", ".join(["Tensor"] * len(self.outputs))
        result = outputs if len(self.outputs) == 1 else f"({outputs})"
        return f"({', '.join(tensors + scalars)}) -> {result}"

    @property
    def token_inputs(self) -> tuple[int, ...]:
        """The numbers of the inputs that hold a row a token, on their axis TOKEN_AXIS."""
        return tuple(number for number, spec in enumerate(self.inputs) if "N" in spec.axes)

    @property
    def rows_axis(self) -> int | None:
        """The axis of the first output that the attribute `rows` cuts; None for an op without that attribute."""
        return TOKEN_AXIS if any(spec.name == "rows" for spec in self.attributes) else None

    def check_attributes(self, values: Mapping[str, float]) -> None:
        """Raise UsageError unless `values` holds every attribute, in range, and nothing else.

        Those with a default may be missing.
        """
        names = [spec.name for spec in self.attributes]
        needed = {spec.name for spec in self.attributes if spec.default is None}
        if not needed <= values.keys() <= set(names):
            raise UsageError(
                f"{self.name}: attributes {sorted(values)} given.",
                f"the op has exactly {names}.",
                "pass each of them once.",
            )
        for spec in self.attributes:
            if spec.name in values:
                spec.check(self.name, values[spec.name])

    def bind_axes(self, shapes: Mapping[str, tuple[int, ...]], heads: int) -> dict[str, int]:
        """Solve the axis names from input shapes: `{"B": 2, "N": 197, "H": 16, "D": 64, ...}`."""
        bound = {"H": heads}
        for spec in self.inputs:
            for axis, size in zip(spec.axes, shapes[spec.name], strict=True):
                *known, free = axis.split("*")
                for factor in known:
                    size //= int(factor) if factor.isdigit() else bound[factor]
                bound.setdefault(free, size)
        return bound


class Nodes(Protocol):
    """Where a graph pass collects new ONNX nodes; each call returns the node's output."""

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Append a node."""

    def ints(self, *values: int) -> ir.Value:
        """A constant vector of int64."""


TileWeights = Callable[[Nodes, Sequence["ir.Value"]], "ir.Value"]


@dataclass(frozen=True)
class Op:
    """One op: its contract and everything that implements it.

    Attributes:
        contract: the interface all implementations share.
        eager: the PyTorch implementation.
        fake: its output shapes, for tracing.
        body: the ONNX function body, attributes by reference.
        flops: floating-point operations of one call, from the bound axes and the attributes.
        workspace_bytes: what the function body holds at once beside the op's inputs and outputs, all of it float32.
        tile_weights: for an op whose first two outputs are sum_n w_n x_n and sum_n w_n, each over (sum_n w_n + eps),
            where x is its last token input. Called with a node, its other inputs in float32, and a place for what is
            computed once. It makes a function from one tile's token inputs, [B, n, ...] float32, to w [B, n, H], and
            says by how much that w is larger than the op's.
    """

    contract: Contract
    eager: Callable[..., Any]
    fake: Callable[..., Any]
    body: onnxscript.OnnxFunction[Any, Any]
    flops: Callable[[Mapping[str, int], Mapping[str, float]], int]
    workspace_bytes: Callable[[Mapping[str, int], Mapping[str, float]], int]
    tile_weights: Callable[[ir.Node, Sequence[ir.Value], Nodes], tuple[TileWeights, float]] | None = None

    @cached_property
    def torch_op(self) -> Any:
        """The PyTorch custom op; the first use registers it, and is what needs PyTorch."""
        import torch

        contract = self.contract
        op = torch.library.custom_op(contract.torch_name, self.eager, mutates_args=(), schema=contract.torch_schema)
        op.register_fake(self.fake)
        return op


def accumulation_dtype(tensor: torch.Tensor) -> torch.dtype:
    """float64 for a float64 tensor, float32 for everything narrower."""
    import torch

    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
