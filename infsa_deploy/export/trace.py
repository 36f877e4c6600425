"""torch.export to an ONNX graph in which each custom op is one bare node of domain `infsa`."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import onnxscript
import torch
from onnx import defs
from torch import nn

from infsa_deploy.errors import ModelError
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, VERSION, Contract

OPSET = 20


def trace(
    module: nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    static_batch: int | None = None,
    free_axes: Mapping[int, Any] | None = None,
) -> ir.Model:
    """Trace `module` on `example_inputs` (the first axis of each is the batch).

    Inputs are named after the parameters of `forward`; outputs by the module's `output_names` if it has any, else
    a single output is named `logits`. The batch axis is free unless `static_batch` is given; `free_axes` are further
    free axes of the first input.

    Raises:
        ModelError: torch.export or the ONNX conversion cannot handle the module.
    """
    names = list(inspect.signature(module.forward).parameters)[: len(example_inputs)]
    size = static_batch or 2  # torch.export specialises a batch of 1
    examples = tuple(tensor[:1].expand(size, *tensor.shape[1:]).contiguous() for tensor in example_inputs)
    batch = {} if static_batch else {0: torch.export.Dim("batch")}
    first, *others = (batch for _ in examples)
    shapes = ({**first, **(free_axes or {})}, *others)
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                examples,
                dynamo=True,
                opset_version=OPSET,
                input_names=names,
                dynamic_shapes=shapes,
                custom_translation_table=_translations(),
                optimize=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"{type(module).__name__} could not be traced.",
            _root_cause(error),
            "make the model traceable by torch.export; if only its batch size is fixed, state it (--batch).",
        ) from error
    assert program is not None
    model = program.model
    default = ("logits",) if len(model.graph.outputs) == 1 else ()
    names_out = getattr(module, "output_names", default)
    for output, name in zip(model.graph.outputs, names_out, strict=bool(names_out)):
        output.name = name
    return model


def onnx_schema(contract: Contract) -> defs.OpSchema:
    """The ONNX operator schema of a contract."""
    options = defs.OpSchema.FormalParameterOption
    kinds = {"int": defs.OpSchema.AttrType.INT, "float": defs.OpSchema.AttrType.FLOAT}
    return defs.OpSchema(
        contract.name,
        DOMAIN,
        VERSION,
        inputs=[defs.OpSchema.FormalParameter(spec.name, "T") for spec in contract.inputs],
        outputs=[
            defs.OpSchema.FormalParameter(
                spec.name, "T", param_option=options.Optional if spec.optional else options.Single
            )
            for spec in contract.outputs
        ],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "type of every tensor")],
        attributes=[
            defs.OpSchema.Attribute(a.name, kinds[a.kind], "", required=a.default is None) for a in contract.attributes
        ],
    )


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    return {op.torch_op._opoverload: _translation(op.contract) for op in OPS}


def _translation(contract: Contract) -> Callable[..., Any]:
    emit = onnxscript.values.Op(onnxscript.values.Opset(DOMAIN, VERSION), contract.name, onnx_schema(contract))
    arity = len(contract.inputs)

    def translate(*arguments: Any) -> Any:
        defaults = {spec.name: spec.default for spec in contract.attributes}
        given = zip(defaults, arguments[arity:], strict=False)
        return emit(*arguments[:arity], **defaults | dict(given))

    return translate


def _root_cause(error: BaseException) -> str:
    """The innermost exception's first line: the one that names what went wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on packages and deprecations; its errors are raised, not logged."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
