"""Triton's `config.pbtxt`, as messages of Triton's own protobuf schema, so that no field can be misspelt.

The schema comes with tritonclient (extra `serve`). Only packaging needs it; a server that runs the result does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc  # noqa: F401 - where it is missing, tritonclient does not say which package is
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from infsa_deploy.config import ServingConfig
from infsa_deploy.errors import ModelError
from infsa_deploy.runtime.sessions.protocol import TensorInfo
from infsa_deploy.serving.servable import Servable

TYPES = {"float16": "TYPE_FP16", "bfloat16": "TYPE_BF16", "float32": "TYPE_FP32", "float64": "TYPE_FP64"}
FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "python": "model.py"}
THREADS = {"onnxruntime": "intra_op_thread_count", "python": "threads"}  # TensorRT has none
LABELS = "labels.txt"
SIGNATURE = ("platform", "backend", "default_model_filename", "max_batch_size", "input", "output")

Config = Any  # schema.ModelConfig: generated code, without types


def model_config(name: str, model: Servable, backend: str, config: ServingConfig) -> Config:
    """The configuration of the model itself.

    Args:
        name: the model's name.
        model: what is known of it.
        backend: `onnxruntime`, `tensorrt` or `python`.
        config: what the user asked for.
    """
    most = config.max_batch or model.together
    message = schema.ModelConfig(name=name, backend=backend, max_batch_size=most, input=[_input(model.input)])
    message.default_model_filename = FILES[backend]
    message.output.extend(_output(info) for info in model.outputs)
    if backend == "python":
        message.parameters["provider"].string_value = config.provider
    if config.threads and backend in THREADS:
        message.parameters[THREADS[backend]].string_value = str(config.threads)
    _serve(message, config, on_gpu=model.record is not None or config.provider == "cuda")
    if backend == "python" and model.record is not None:
        message.instance_group[0].gpus.append(0)  # the session runs on the first GPU
    image = model.metadata.image
    for batch in sorted({1, most}):
        warm = message.model_warmup.add(name=f"{batch} x {image.height}x{image.width}", batch_size=batch, count=1)
        zeros = warm.inputs[model.input.name]
        zeros.data_type, zeros.zero_data = _type(model.input), True
        zeros.dims.extend((image.channels, image.height, image.width))
    return message


def decode_config(name: str, model: Servable, config: ServingConfig) -> Config:
    """The configuration of the stage that turns the bytes of image files into the model's input."""
    most = config.max_batch or model.together
    output = schema.ModelOutput(name=model.input.name, data_type=_type(model.input), dims=_dims(model.input))
    message = schema.ModelConfig(
        name=name, backend="python", default_model_filename="model.py", max_batch_size=most, output=[output]
    )
    message.input.add(name="file", data_type="TYPE_STRING", dims=[1])
    _serve(message, config, on_gpu=False)
    return message


def ensemble_config(name: str, decode: Config, model: Config) -> Config:
    """The configuration of both in a row: bytes of image files in, the model's outputs out."""
    message = schema.ModelConfig(
        name=name, platform="ensemble", max_batch_size=model.max_batch_size, input=decode.input, output=model.output
    )
    image = decode.output[0].name
    first = message.ensemble_scheduling.step.add(model_name=decode.name, model_version=-1)
    first.input_map["file"], first.output_map[image] = "file", "preprocessed"
    second = message.ensemble_scheduling.step.add(model_name=model.name, model_version=-1)
    second.input_map[image] = "preprocessed"
    for output in model.output:
        second.output_map[output.name] = output.name
        output_copy = next(item for item in message.output if item.name == output.name)
        output_copy.ClearField("label_filename")
    return message


def to_text(config: Config) -> str:
    """The text of `config.pbtxt`."""
    return str(text_format.MessageToString(config))


def read_config(path: Path) -> Config:
    """A `config.pbtxt`; ModelError where Triton's schema does not have it."""
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), schema.ModelConfig())
    except (text_format.ParseError, OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read.", str(error), "mend it, or package under another --name.") from error


def differing(first: Config, second: Config) -> list[str]:
    """Names of the fields in which two configurations differ."""
    names = [field.name for field in schema.ModelConfig.DESCRIPTOR.fields]
    return [name for name in names if getattr(first, name) != getattr(second, name)]


def _serve(message: Config, config: ServingConfig, *, on_gpu: bool) -> None:
    """Batching, instances, and no response cache: two images are seldom the same, and hashing them costs."""
    message.dynamic_batching.max_queue_delay_microseconds = config.queue_delay_us
    message.instance_group.add(count=config.instances, kind="KIND_GPU" if on_gpu else "KIND_CPU")
    message.response_cache.enable = False


def _input(info: TensorInfo) -> Config:
    return schema.ModelInput(name=info.name, data_type=_type(info), dims=_dims(info))


def _output(info: TensorInfo) -> Config:
    labels = LABELS if info.name == "logits" else ""
    return schema.ModelOutput(name=info.name, data_type=_type(info), dims=_dims(info), label_filename=labels)


def _type(info: TensorInfo) -> str:
    return TYPES[info.dtype]


def _dims(info: TensorInfo) -> list[int]:
    """Every axis but the batch's; -1 where it is free."""
    return [size if isinstance(size, int) else -1 for size in info.shape[1:]]
