"""The real runtime of TensorRT-RTX up to its first call of CUDA, which is where a machine without a GPU ends.

By then it has read the plan's header, loaded the plugin library that the plan holds, and registered its creators: that
is seen in the runtime's own registry, before and after. What it says of CUDA is not looked at.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infsa_deploy.config import EngineConfig, ExportConfig
from infsa_deploy.engine.build import Listener, build_engine
from infsa_deploy.engine.plugin_library import ELF_MAGIC, holds_host_code
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.ops import OPS
from infsa_deploy.ops.contract import DOMAIN, VERSION
from tests.conftest import _tiny

OURS = sorted(f"{DOMAIN}::{op.contract.name}::{VERSION}" for op in OPS)

# Loads each plan in a runtime of its own and prints the creators in its registry before and after. 0 or 1 before a path
# says whether code of the plan may run on the processor.
LOAD = """
import json, sys
import tensorrt_rtx as trt

class Log(trt.ILogger):
    def log(self, severity, text):
        pass

def creators(registry):
    return sorted(f"{c.plugin_namespace}::{c.name}::{c.plugin_version}" for c in registry.all_creators)

for allowed, path in zip(sys.argv[1::2], sys.argv[2::2]):
    runtime = trt.Runtime(Log())
    runtime.engine_host_code_allowed = allowed == "1"
    registry = runtime.get_plugin_registry()
    before = creators(registry)
    runtime.deserialize_cuda_engine(open(path, "rb").read())
    print(json.dumps([before, creators(registry)]), flush=True)
"""


def load(*words: object) -> list[list[list[str]]]:
    typed = [sys.executable, "-c", LOAD, *map(str, words)]
    with tempfile.TemporaryDirectory() as scratch:  # TensorRT-RTX leaves the library that it took out of the plan
        environment = os.environ | {"TMPDIR": scratch}
        result = subprocess.run(typed, capture_output=True, text=True, check=False, env=environment)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def plans(built, tmp_path_factory) -> dict[str, Path]:
    """Engines of the tiny linear model for SM 80: with the library inside, and from the function bodies."""
    if not importlib.util.find_spec("tensorrt_rtx"):
        pytest.skip("needs TensorRT-RTX: pip install tensorrt-rtx-cu13")
    folder = tmp_path_factory.mktemp("rtx")
    model = folder / "m.onnx"
    export_reference(_tiny("linear", depth=1), model, ExportConfig(static_batch=1))
    found = {}
    for name, plugins in (("plugins", True), ("bodies", False)):
        config = EngineConfig(
            backend="tensorrt-rtx",
            targets=("sm80",),
            plugins=plugins,
            plugin_library=built.plugins if plugins else None,
        )
        found[name] = folder / f"{name}.engine"
        build_engine(model, found[name], config, Listener())
    return found


def test_the_library_in_the_plan_is_registered(plans) -> None:
    """Before: nothing. After: our three creators; of an engine without plugins none."""
    found = load(1, plans["plugins"], 1, plans["bodies"])
    assert found == [[[], OURS], [[], []]]


def test_the_library_runs_whether_host_code_is_allowed_or_not(plans) -> None:
    """TensorRT-RTX 1.7 does not ask for leave: so ours has to be asked for before the plan is handed over."""
    assert load(0, plans["plugins"]) == [[[], OURS]]


def test_plans_tell_by_themselves_whether_they_hold_code(built, plans) -> None:
    """Behind its own header the library holds ELF files too, for GPUs: those count for nothing."""
    assert holds_host_code(plans["plugins"].read_bytes())
    assert not holds_host_code(plans["bodies"].read_bytes())
    within = built.plugins.read_bytes()[1:]
    assert within.count(ELF_MAGIC) > 10
    assert not holds_host_code(within)


@pytest.mark.parametrize("damage", ["cut", "longer", "another magic", "empty", "no library"])
def test_damaged_plans_register_nothing(built, plans, tmp_path, damage: str) -> None:
    plan = plans["plugins"].read_bytes()
    at = plan.index(built.plugins.read_bytes())
    damaged = {
        "cut": plan[:-1],
        "longer": plan + b"\0",
        "another magic": b"\xff" * 4 + plan[4:],
        "empty": b"",
        "no library": plan[:at] + b"\0" * 64 + plan[at + 64 :],
    }
    (tmp_path / "m.engine").write_bytes(damaged[damage])
    good, *found = load(1, plans["plugins"], 1, tmp_path / "m.engine")
    assert good == [[], OURS]
    assert found in ([], [[[], []]])  # no line where the runtime ended the process
