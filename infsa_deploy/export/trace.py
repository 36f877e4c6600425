"""torch.export to an ONNX graph in which each custom op is one bare node of domain `infsa`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import onnxscript
import torch
from onnx import defs
from torch import Tensor, nn

from infsa_deploy.errors import DeployError, ModelError
from infsa_deploy.export.frozen_scalars import HandingScalars
from infsa_deploy.export.interface import SINGLE_OUTPUT, flatten_outputs, input_names, own_output_names
from infsa_deploy.export.rewrite.probes import has_batch_axis, with_batch
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, VERSION, Contract

OPSET = 20
TRACED_BATCH = 2  # torch.export specialises a batch of 1
BATCH = "batch"


class FlatOutputs(nn.Module):
    """Runs `module` and returns its tensors in a tuple, under the names that the rule of `interface` gives them.

    Args: names_in: the inputs' names. names: the outputs'.
    """

    def __init__(self, module: nn.Module, names_in: Sequence[str], names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.input_names, self.output_names = module, tuple(names_in), tuple(names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(flatten_outputs(self.module(*inputs), own_output_names(self.module)).values())


@dataclass(frozen=True)
class Program:
    """A traced module: what torch.export made of it, its inputs' free axes, and the names of inputs and outputs."""

    exported: torch.export.ExportedProgram
    shapes: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def trace(module: nn.Module, example_inputs: Sequence[torch.Tensor], **options: Any) -> ir.Model:
    """Trace `module` on `example_inputs` to ONNX; see capture for the options and errors."""
    return to_onnx(capture(module, example_inputs, **options))


def capture(
    module: nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    static_batch: int | None = None,
    free_axes: Mapping[int, Any] | None = None,
    scalars: Sequence[Any] = (),
) -> Program:
    """Trace `module` on `example_inputs` (the first axis of each is the batch) with torch.export.

    Inputs are named after the parameters of `forward`; outputs by the module's `output_names` if it has any, else a
    single output is named `logits` and several `output_0`, ... The batch axis is free unless `static_batch` is given;
    `free_axes` are further free axes of the first input; `scalars` see frozen_scalars.

    Raises:
        ModelError: torch.export cannot handle the module, or what it traced holds for some batch sizes only.
    """
    examples = with_batch(example_inputs, static_batch or TRACED_BATCH)
    batch = {} if static_batch else {0: torch.export.Dim(BATCH)}
    first, *others = ({**batch} if has else {} for has in has_batch_axis(example_inputs))
    shapes: Any = ({**first, **(free_axes or {})}, *others)
    flat = isinstance(module, FlatOutputs)
    try:
        handing = HandingScalars(scalars) if scalars else nullcontext()  # each call would pay for it
        with _quiet(), handing:
            dynamic = (shapes,) if flat else shapes
            exported = torch.export.export(module, examples, dynamic_shapes=dynamic, strict=False)
    except DeployError:
        raise
    except Exception as error:  # torch.export lets through whatever the user's forward raises
        raise _untraceable(module, error) from error
    count = sum(1 for spec in exported.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT")
    default = (SINGLE_OUTPUT,) if count == 1 else tuple(f"output_{index}" for index in range(count))
    names_in = module.input_names if isinstance(module, FlatOutputs) else input_names(module, len(examples))
    return Program(exported, shapes, names_in, own_output_names(module) or default)


def to_onnx(program: Program) -> ir.Model:
    """Convert a traced module to an ONNX graph; ModelError where an operator has no ONNX form."""
    try:
        with _quiet():
            made = torch.onnx.export(
                program.exported,
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=program.inputs,
                dynamic_shapes=program.shapes,
                custom_translation_table=_translations(),
                optimize=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            "the model could not be converted to ONNX.",
            _root_cause(error),
            "use operators that torch.onnx converts; the one at fault is named above.",
        ) from error
    assert made is not None
    _name_outputs(made.model, program.outputs)
    return made.model


def _name_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Name the outputs; one that is an input, a weight or another output as well gets a node of its own."""
    graph, taken = model.graph, set()
    del graph.outputs[len(names) :]  # what a module wrote into its buffers
    for index, name in enumerate(names):
        output = graph.outputs[index]
        if output in taken or output.is_graph_input() or output.is_initializer():
            node = ir.node("Identity", [output])
            node.outputs[0].shape, node.outputs[0].type = output.shape, output.type
            graph.append(node)
            graph.outputs[index] = output = node.outputs[0]
        output.name = name
        taken.add(output)


def _untraceable(module: nn.Module, error: BaseException) -> ModelError:
    """The error of torch.export in our words; a cause that is an error of ours keeps its own fix."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DeployError):
            return ModelError(cause.what, cause.why, cause.fix)
        cause = cause.__cause__
    name = type(module.module if isinstance(module, FlatOutputs) else module).__name__
    if isinstance(error, torch._dynamo.exc.UserError) and "onstraints violated" in str(error):
        return ModelError(
            f"{name} does not compute the same for every batch size.",
            _guard(str(error)),
            "state the batch size it is to run with (--batch), or take the branch on the size out.",
        )
    return ModelError(
        f"{name} could not be traced.",
        _root_cause(error),
        "make the model traceable by torch.export; if only its batch size is fixed, state it (--batch).",
    )


def _guard(text: str) -> str:
    lines = [line.strip(" -") for line in text.splitlines()]
    return next((line for line in lines if BATCH in line and "Constraints" not in line), lines[0])


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
