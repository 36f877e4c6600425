"""Figures of the InfSA paper (arXiv:2603.00175), shown beside ours only where device and work are the same.

They are the paper's, on an A100 of 40 GB at 1024 x 1024; its text gives neither batch nor precision with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from infsa_deploy.records.bench import Cell, Machine

DEVICE_WORDS = ("A100", "40GB")


@dataclass(frozen=True)
class PaperFigure:
    """One line of the paper's efficiency comparison."""

    model: str
    height: int
    width: int
    name: str
    images_per_s: float
    j_per_image: float


PAPER = (
    PaperFigure("infvit_linear_4l", 1024, 1024, "Linear InfViT, 4 layers", 231, 0.87),
    PaperFigure("infvit_linear_4l", 1024, 1024, "softmax ViT, 4 layers", 17.2, 11.63),
)


def beside(cell: Cell, machine: Machine) -> Sequence[PaperFigure]:
    """The paper's figures for the work of `cell`, if `machine` has the paper's device."""
    if not any(all(word in gpu for word in DEVICE_WORDS) for gpu in machine.gpus):
        return ()
    return [f for f in PAPER if (f.model, f.height, f.width) == (cell.model, cell.height, cell.width)]
