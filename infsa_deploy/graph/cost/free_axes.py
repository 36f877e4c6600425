"""The free axes of a model of any size: their names, and their sizes for an image."""

from __future__ import annotations

from infsa_deploy.records.model import ImageSpec

ROWS, COLUMNS = "rows", "columns"  # patches down and across


def patch_grid(image: ImageSpec) -> dict[str, int]:
    """Sizes of the free axes for an image of the spec's height and width; empty for a model of one size."""
    if image.multiple_of is None:
        return {}
    return {ROWS: image.height // image.multiple_of, COLUMNS: image.width // image.multiple_of}
