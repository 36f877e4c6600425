"""Every model of the table: equal to the user's own module, in float64, float32, fp16 and bf16, or refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from infsa_deploy.config import ModelSource
from infsa_deploy.errors import DeployError
from infsa_deploy.export import PIPELINE
from infsa_deploy.export.interface import module_outputs
from infsa_deploy.export.rewrite.copying import copied
from infsa_deploy.export.rewrite.equivalence import apply, observe, widened
from infsa_deploy.export.rewrite.probes import probe
from infsa_deploy.export.rewrite.program_proof import program_difference
from infsa_deploy.export.rewrite.proven import flattened, proven_program, rewrite
from infsa_deploy.export.sources import foreign_reference
from infsa_deploy.export.trace import to_onnx
from infsa_deploy.graph.precision.retype import retype
from tests.models_in_the_wild.models import MODELS, TRACED_ALONE

BATCH = 4  # not of the exporter's own runs
FLOAT32 = 2e-5  # of the largest output: a few hundred roundings
UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("name", MODELS)
def test_equal_or_refused(name):
    wild = MODELS[name]
    torch.manual_seed(3)
    module = wild.build().eval()
    if wild.outcome not in ("ops", "kept", "none"):
        with pytest.raises(DeployError) as caught:
            exported(module, wild.examples)
        assert wild.outcome in str(caught.value)
        return
    program, rewriting = exported(module, wild.examples)
    assert bool(rewriting.forms) == (wild.outcome == "ops")
    assert bool(rewriting.kept) == (wild.outcome == "kept")
    in_float64(program, rewriting)
    if name in TRACED_ALONE:
        return
    graph = to_onnx(program)
    for transform in PIPELINE:
        graph = transform(graph)
    assert any(node.domain == "infsa" for node in graph.graph) == (wild.outcome == "ops")
    in_onnx_runtime(ir.to_proto(graph).SerializeToString(), rewriting.original, wild.examples)


def exported(module, examples):
    reference = foreign_reference(copied(module), examples, "wild", ModelSource())
    return proven_program(rewrite(reference.module, examples, fold=True, static_batch=None))


def in_float64(program, rewriting):
    """The traced program, on inputs that the exporter did not compare it on."""
    wide = widened(rewriting.original)
    seen = rewriting.seen
    if seen.module is not seen.wide:
        return  # it cannot run in float64
    fresh = observe(wide, wide, rewriting.examples, (BATCH, 2))
    made = flattened(apply(copied(wide), rewriting.forms), rewriting)
    assert program_difference(program, fresh, made) == ""


def in_onnx_runtime(model, module, examples):
    """float32 against float64; fp16 as it is; bf16, for which no CPU runtime has kernels, with bf16 weights."""
    for batch in (1, BATCH):
        inputs = probe(examples, batch, 77, torch.float32)
        exact, found = exact_outputs(module, inputs), run(model, inputs)
        assert list(found) == list(exact)
        for key, wanted in exact.items():
            assert error(wanted, found[key]) <= FLOAT32
    for dtype, unit in UNIT.items():
        graph = ir.from_proto(onnx.ModelProto.FromString(model))
        retype(graph, dtype, keep_io=True)
        narrow = run(ir.to_proto(as_float32(graph)).SerializeToString(), inputs)
        rounded = module_outputs(with_weights_in(module, dtype), inputs)
        for key, wanted in exact.items():
            if wanted.is_floating_point():
                assert error(wanted, narrow[key]) <= 4 * error(wanted, rounded[key].detach().numpy()) + 32 * unit


def exact_outputs(module, inputs):
    try:
        return module_outputs(widened(module), [x.double() if x.is_floating_point() else x for x in inputs])
    except RuntimeError:  # float32 alone
        return module_outputs(copied(module), inputs)


def run(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    taken = [value.name for value in session.get_inputs()]
    feeds = {name: x.numpy() for name, x in zip(taken, inputs, strict=True)}
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def error(wanted, found):
    """The largest error over the largest value."""
    wanted, found = wanted.detach().double().numpy(), found.astype(np.float64)
    assert wanted.shape == found.shape
    return np.abs(wanted - found).max() / (np.abs(wanted).max() or 1.0)


def with_weights_in(module, dtype):
    rounded = copied(module)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.to(TYPES[dtype]).float())
    return rounded


def as_float32(graph):
    """What is bf16 in the graph as float32, its weights as rounded as they are."""
    wide, narrow = ir.DataType.FLOAT, ir.DataType.BFLOAT16
    for value in [*graph.graph.initializers.values(), *(v for n in graph.graph.all_nodes() for v in n.outputs)]:
        if value.dtype == narrow:
            value.dtype = wide
        if value.const_value is not None and value.const_value.dtype == narrow:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
    for node in graph.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if name == "to" and attribute.value == narrow:
                node.attributes[name] = ir.AttrInt64(name, wide)
            if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == narrow:
                node.attributes[name] = ir.AttrTensor(name, ir.tensor(attribute.value.numpy().astype(np.float32)))
    return graph
