"""The sidecar of an engine that does not exist, for tests to change with `dataclasses.replace`."""

from __future__ import annotations

from infsa_deploy.config import ModelSource
from infsa_deploy.records.engine import EngineRecord, PluginUse, PrecisionFound, TensorProfile
from infsa_deploy.records.model import ImageSpec, MemoryNeed, ModelMetadata

IMAGE = ImageSpec(3, 4, 4, (0.5,) * 3, (0.5,) * 3)
PROFILE = TensorProfile("float32", (-1, 3, 4, 4), (1, 3, 4, 4), (2, 3, 4, 4), (4, 3, 4, 4))
RECORD = EngineRecord(
    tool_version="0.1.0",
    flavour="tensorrt",
    flavour_version="11.0.0",
    targets=("sm80",),
    built_on=None,
    engine_sha256="",
    engine_bytes=0,
    onnx="m.onnx",
    onnx_sha256="0" * 64,
    inputs={"image": PROFILE},
    outputs={"logits": TensorProfile("float32", (-1, 3))},
    precision=PrecisionFound("fp16", {"fp16": 3}, {"fp16": 100.0}, {}),
    plugins=PluginUse("none", None, None, False, {}, None),
    options={},
    timing_cache_sha256=None,
    build_s=1.0,
    activation_bytes_predicted=None,
    activation_bytes=None,
    metadata=ModelMetadata(
        variant="linear",
        form="ops",
        architecture={},
        image=IMAGE,
        classes=("a", "b", "c"),
        weights_sha256="0" * 64,
        source=ModelSource(),
        dtype="fp16",
        memory=MemoryNeed(1, 1.0),
        tool_version="0.1.0",
    ),
)
