"""Sidecars that are refused, in one readable error, and odd ones that are read; C++ is held to the same table."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from infsa_deploy.config import ModelSource
from infsa_deploy.engine import sidecar_schema
from infsa_deploy.engine.sidecar import read_sidecar, sidecar_path, sidecar_text
from infsa_deploy.errors import BuildError, ModelError
from infsa_deploy.records.codec import from_json, to_json
from infsa_deploy.records.engine import EngineRecord, Gpu, PluginUse, PrecisionFound, TensorProfile
from infsa_deploy.records.model import ImageSpec, MemoryNeed, ModelMetadata
from tests.engine_record import RECORD
from tests.sidecar_cases import damaged, odd

GOOD = replace(RECORD, engine_sha256="0" * 64, engine_bytes=6)
DAMAGED, ODD = damaged(to_json(GOOD)), odd(to_json(GOOD))


@pytest.fixture
def read(tmp_path):
    """What is read of a sidecar with this content."""
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"a plan")

    def run(content: bytes) -> EngineRecord:
        sidecar_path(engine).write_bytes(content)
        return read_sidecar(engine)

    return run


def test_one_that_is_in_order(read):
    assert read(to_json(GOOD).encode()) == GOOD


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(read, name):
    with pytest.raises(ModelError, match=r"m\.engine\.json cannot be read") as refused:
        read(DAMAGED[name])
    assert 0 < len(refused.value.why) < 500


@pytest.mark.parametrize("name", ODD)
def test_odd(read, name):
    assert isinstance(read(ODD[name]), EngineRecord)


SECTIONS = {
    EngineRecord: (),
    Gpu: ("built_on",),
    TensorProfile: ("inputs", "*"),
    PrecisionFound: ("precision",),
    PluginUse: ("plugins",),
    ModelMetadata: ("metadata",),
    ImageSpec: ("metadata", "image"),
    ModelSource: ("metadata", "source"),
    MemoryNeed: ("metadata", "memory"),
}


@pytest.mark.parametrize("record", SECTIONS)
def test_records_and_schema_have_the_same_fields(record):
    schema = json.loads(Path(sidecar_schema.__file__).with_name("sidecar_schema.json").read_text())
    part = schema
    for name in SECTIONS[record]:
        part = part["additionalProperties"] if name == "*" else part["properties"][name]
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    assert set(part["properties"]) == {field.name for field in fields(record)}
    assert part["additionalProperties"] is False
    needed = {f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING}
    assert set(part.get("required", ())) == needed


def test_no_engine_is_built_whose_sidecar_would_be_refused():
    assert from_json(EngineRecord, sidecar_text(GOOD)) == GOOD
    named = replace(GOOD, metadata=replace(GOOD.metadata, classes=("a", "b\nc", "d")))
    with pytest.raises(BuildError, match="would not be read again"):
        sidecar_text(named)
