"""PyTorch to ONNX: trace a model with attention on the custom ops, then run the passes of PIPELINE in order.

The module is callable: `infsa_deploy.export(module, example_inputs, path)` is `pipeline.export_module`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from infsa_deploy.graph.passes.attach_ops import attach_ops
from infsa_deploy.graph.passes.clean import fold_constants, strip_provenance
from infsa_deploy.graph.passes.hoist_token_selection import hoist_token_selection

PIPELINE: tuple[Callable[[ir.Model], ir.Model], ...] = (
    fold_constants,
    hoist_token_selection,
    strip_provenance,
    attach_ops,
)


class _CallableModule(types.ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from infsa_deploy.export.pipeline import export_module

        return export_module(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
