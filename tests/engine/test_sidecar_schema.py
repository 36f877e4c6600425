"""The schema names every field of the records that a sidecar holds, and no other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import infsa_deploy.engine
from infsa_deploy.config import ModelSource
from infsa_deploy.engine_records import EngineRecord, Gpu, PluginUse, PrecisionFound, TensorProfile
from infsa_deploy.records import ImageSpec, MemoryNeed, ModelMetadata

SCHEMA = json.loads((Path(infsa_deploy.engine.__file__).parent / "sidecar_schema.json").read_text())
TOP, KINDS = SCHEMA["properties"], SCHEMA["$defs"]
RECORDS = {
    EngineRecord: SCHEMA,
    Gpu: TOP["built_on"],
    PrecisionFound: TOP["precision"],
    PluginUse: TOP["plugins"],
    ModelMetadata: TOP["metadata"],
    MemoryNeed: TOP["metadata"]["properties"]["memory"],
    TensorProfile: KINDS["tensor"],
    ImageSpec: KINDS["image"],
    ModelSource: KINDS["source"],
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_fields_and_schema_agree(record) -> None:
    """A field without a default is required; what the schema does not name is refused."""
    rules, fields = RECORDS[record], dataclasses.fields(record)
    assert set(rules["properties"]) == {field.name for field in fields}
    assert set(rules.get("required", ())) == {f.name for f in fields if f.default is dataclasses.MISSING}
    assert rules["additionalProperties"] is False
