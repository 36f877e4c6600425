"""What every traced graph is rid of: constant subgraphs, repetitions, notes of the tracer."""

from __future__ import annotations

import onnx_ir as ir
import onnxscript.optimizer
from onnx_ir.passes.common import ClearMetadataAndDocStringPass, CommonSubexpressionEliminationPass

LARGEST_WEIGHT = 1 << 30  # elements; weights are transposed and reshaped here, once, and not in each process


def fold_constants(model: ir.Model) -> ir.Model:
    """Fold constant subgraphs, common subexpressions and identities; shapes are inferred on the way.

    Common subexpressions go first: a weight transposed for two uses would fold into two weights, which no later
    pass could tell to be one.
    """
    CommonSubexpressionEliminationPass()(model)
    onnxscript.optimizer.optimize_ir(
        model, input_size_limit=LARGEST_WEIGHT, output_size_limit=LARGEST_WEIGHT, onnx_shape_inference=True
    )
    return model


def strip_provenance(model: ir.Model) -> ir.Model:
    """Clear the doc strings and metadata of the model, its graph, nodes and values."""
    ClearMetadataAndDocStringPass()(model)
    return model
