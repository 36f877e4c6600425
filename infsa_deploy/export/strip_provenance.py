"""Dropping what the tracer noted about its own run: source lines, stack traces, the paths of the exporting machine."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass


def strip_provenance(model: ir.Model) -> ir.Model:
    """Clear the doc strings and metadata of the model, its graph, nodes and values."""
    ClearMetadataAndDocStringPass()(model)
    return model
