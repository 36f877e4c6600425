"""Peaks of devices that are not here, from their makers' datasheets: for predictions, never for measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infsa_deploy.errors import UsageError
from infsa_deploy.records.bench import Predicted, Work


@dataclass(frozen=True)
class Datasheet:
    """Peaks of a device by its maker's datasheet: dense products by type, a multiply-add counting as 2.

    `fp32` is TF32, which TensorRT uses for float32 models.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str


A100 = {"fp32": 156e12, "fp16": 312e12, "bf16": 312e12, "int8": 624e12}
H100 = {"fp32": 494.7e12, "fp16": 989.4e12, "bf16": 989.4e12, "int8": 1978.9e12}
L4 = {"fp32": 60e12, "fp16": 121e12, "bf16": 121e12, "int8": 242e12}

DATASHEETS: dict[str, Datasheet] = {
    "a100-40gb": Datasheet(A100, 1555e9, "NVIDIA A100 Tensor Core GPU datasheet, A100 40GB"),
    "a100-80gb": Datasheet(A100, 2039e9, "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM"),
    "h100": Datasheet(H100, 3350e9, "NVIDIA H100 Tensor Core GPU datasheet and architecture whitepaper, H100 SXM5"),
    "l4": Datasheet(L4, 300e9, "NVIDIA L4 Tensor Core GPU datasheet, half of its figures with sparsity"),
}


def datasheet(device: str) -> Datasheet:
    """Look up a device; UsageError, naming those that there are, where it is unknown."""
    if device not in DATASHEETS:
        raise UsageError(f"device {device!r} is unknown.", f"there are {', '.join(DATASHEETS)}.", "choose one.")
    return DATASHEETS[device]


def predict(work: Work, device: str) -> Predicted | None:
    """Compute the floor of a call on a device of DATASHEETS; None where it has no peak for a type of the work."""
    sheet = datasheet(device)
    floor = work.floor(sheet.flops_per_s, sheet.bytes_per_s)
    return Predicted(device, floor.floor_ms, floor.bound) if floor else None
