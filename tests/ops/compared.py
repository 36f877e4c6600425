"""What an implementation of an op gives, compared with the op's formula in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from infsa_deploy.ops.contract import Op
from infsa_deploy.validation.op_truth import directions, truth_of
from infsa_deploy.validation.tolerance import Truth, check_each, check_operands

NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def truths(op: Op, inputs: Sequence[torch.Tensor], attributes: Mapping[str, float]) -> list[Truth]:
    """The outputs that the formula gives, and what each may err by in the type of the inputs."""
    dtype = NAMES[inputs[0].dtype]
    return truth_of(op.contract.name, [tensor.double().cpu() for tensor in inputs], attributes, dtype)


def check(op: Op, truth: Sequence[Truth], found: torch.Tensor | Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Each output within its bound; outputs of a body come as float32 whatever their type is."""
    outputs = [found] if isinstance(found, torch.Tensor) else list(found)
    for spec, output, exact in zip(op.contract.outputs, outputs, truth, strict=False):
        check_each(f"{op.contract.name} {spec.name}", output.double().cpu().numpy(), exact, NAMES[dtype])


def check_operand(
    op: Op,
    operand: int,
    runs: Sequence[tuple[Sequence[torch.Tensor], Mapping[str, float], torch.Tensor]],
) -> None:
    """Over runs on different inputs, the first output does not err as if that operand were off."""
    dtype = NAMES[runs[0][0][0].dtype]
    measured = []
    for inputs, attributes, found in runs:
        wide = [tensor.double().cpu() for tensor in inputs]
        direction = directions(op.contract.name, wide, attributes, operand, dtype)[0]
        measured.append((found.double().cpu().numpy(), truths(op, inputs, attributes)[0], direction))
    check_operands(op.contract.name, measured, dtype)
