"""Running engines: every check before the driver is needed, and the session itself on stand-ins.

A plan cannot be deserialised without a driver. The stand-in driver's device memory is host memory, and the stand-in
engine computes on it, so that shapes, addresses, copies, graphs and contexts are exercised for real.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from infsa_deploy.cli.output.engines import inspection_table
from infsa_deploy.config import Trust
from infsa_deploy.engine import driver, sidecar
from infsa_deploy.engine.driver import find_gpu
from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.errors import HostError, ModelError, UsageError
from infsa_deploy.files import sha256
from infsa_deploy.records.codec import to_json
from infsa_deploy.records.engine import EngineRecord, Gpu, PluginUse
from infsa_deploy.runtime.model import Model, load
from infsa_deploy.runtime.sessions.trt import Engine, TrtSession, check_profile, inspect_engine
from tests.engine_record import RECORD

PLAN = b"a plan" * 100
RUNS_CODE = Trust(host_code=True)


@pytest.fixture
def record() -> EngineRecord:
    return replace(RECORD, engine_bytes=len(PLAN))


@pytest.fixture
def written(record, tmp_path):
    """Write the engine and its sidecar, changed: written(targets=("sm90",))."""

    def run(*, plan: bytes = PLAN, **changes) -> Path:
        path = tmp_path / "m.engine"
        path.write_bytes(plan)
        changed = replace(record, **({"engine_bytes": len(plan), "engine_sha256": sha256(path)} | changes))
        sidecar_path(path).write_text(to_json(changed))
        return path

    return run


@pytest.fixture(scope="module")
def driver_file(tmp_path_factory) -> Path:
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).parent / "stand_in_driver.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", source, "-o", library], check=True)
    return library


@pytest.fixture
def cuda(driver_file, monkeypatch):
    """The stand-in driver in place of the machine's."""
    monkeypatch.setattr(driver, "LIBRARY", str(driver_file))
    library = ctypes.CDLL(str(driver_file))
    library.stand_in_no_memory(0)
    return library


class _Context:
    """Computes logits[b] = (sum, max, min) of image[b] at the addresses it was given."""

    def __init__(self, cuda):
        self._cuda, self.shape, self.addresses, self.runs = cuda, None, {}, 0

    def set_input_shape(self, name, shape):
        self.shape = tuple(shape)

    def get_tensor_shape(self, name):
        return (self.shape[0], 3)

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def execute_async_v3(self, stream):
        self.runs += 1
        if self._cuda.stand_in_capturing():
            return True
        image = self._array("image", self.shape)
        columns = [function(image.reshape(self.shape[0], -1), axis=1) for function in (np.sum, np.max, np.min)]
        self._array("logits", (self.shape[0], 3))[...] = np.stack(columns, axis=1)
        return True

    def _array(self, name, shape):
        count = int(np.prod(shape))
        return np.frombuffer((ctypes.c_float * count).from_address(self.addresses[name]), np.float32).reshape(shape)


@pytest.fixture
def tensorrt(cuda, monkeypatch):
    """A stand-in `tensorrt` module; its `loads` are what was deserialised and with what rights."""
    module = types.ModuleType("tensorrt")
    module.__version__ = "11.0.0"
    module.ILogger = object
    module.loads, module.contexts, module.libraries = [], [], []

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, logger):
            self.logger = logger

        def get_plugin_registry(self):
            return types.SimpleNamespace(load_library=lambda path: module.libraries.append(path) or 1)

        def deserialize_cuda_engine(self, plan):
            module.loads.append((plan, self.engine_host_code_allowed))
            if module.refuse:
                self.logger.log(types.SimpleNamespace(name="ERROR"), "Serialization assertion failed")
                return None
            return types.SimpleNamespace(create_execution_context=self._context)

        def _context(self):
            module.contexts.append(_Context(cuda))
            return module.contexts[-1]

    module.Runtime, module.refuse = Runtime, False
    module.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    yield module
    while sidecar.COPIES:
        sidecar.COPIES.popitem()[1].cleanup()


def expected(image):
    flat = image.reshape(len(image), -1)
    return np.stack([flat.sum(1), flat.max(1), flat.min(1)], axis=1)


def test_the_gpu_as_the_driver_shows_it(cuda):
    assert find_gpu() == Gpu("Stand-in A100", "sm80", 1 << 36)


def test_without_a_driver(written, monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libnone.so.1")
    assert find_gpu() is None
    with pytest.raises(HostError, match="needs an NVIDIA GPU and its driver"):
        TrtSession(written())


def test_checks_come_before_the_driver(written, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libnone.so.1")
    path = written()
    path.write_bytes(PLAN[:-1])
    with pytest.raises(ModelError, match="is truncated"):
        Engine(path)
    sidecar_path(path).unlink()
    with pytest.raises(ModelError, match="has no sidecar"):
        Engine(path)


def test_engine_for_another_gpu_or_version(written, tensorrt):
    with pytest.raises(HostError, match="was built for sm90; this GPU, Stand-in A100, is sm80"):
        Engine(written(targets=("sm90",)))
    with pytest.raises(HostError, match=r"11\.0\.0 is installed here"):
        Engine(written(flavour_version="10.14.1"))
    assert tensorrt.loads == []


def test_engine_that_tensorrt_refuses(written, tensorrt):
    tensorrt.refuse = True
    with pytest.raises(HostError, match="cannot load") as failed:
        Engine(written())
    assert failed.value.why == "Serialization assertion failed"


def test_inspection_of_an_engine_that_opens(written, tensorrt, monkeypatch):
    layers = [
        {"Name": "conv", "LayerType": "CaskConvolution", "Outputs": [{"Name": "y", "Format/Datatype": "Half"}]},
        {"Name": "pool", "LayerType": "PluginV3", "Outputs": [{"Name": "z", "Format/Datatype": "Half"}]},
        "a layer of an engine that keeps names alone",
    ]
    opened = types.SimpleNamespace(
        create_engine_inspector=lambda: types.SimpleNamespace(
            get_engine_information=lambda form: json.dumps({"Layers": layers})
        ),
        device_memory_size_v2=4096,
    )
    monkeypatch.setattr(tensorrt.Runtime, "deserialize_cuda_engine", lambda self, plan: opened)
    tensorrt.LayerInformationFormat = types.SimpleNamespace(JSON=1)
    found = inspect_engine(written())
    assert found.layers == {"CaskConvolution": 1, "PluginV3": 1, "layer": 1}
    assert (found.types, found.device_memory_bytes, found.unopened) == ({"Half": 2}, 4096, None)
    table = inspection_table(found, "m.engine")
    assert "2 Half" in str(list(table.columns[1].cells))


def test_inspection_of_an_engine_that_does_not_open(written, tensorrt):
    found = inspect_engine(written(targets=("sm90",)))
    assert (found.layers, found.engine.targets) == (None, ("sm90",))
    assert "was built for sm90; this GPU, Stand-in A100, is sm80" in found.unopened


def test_plugins_in_the_plan_need_no_library_but_leave_to_run(written, tensorrt):
    use = PluginUse("plugins", "lib.so", "0" * 64, True, {"infsa::EnergyPool::1": 4}, "engine")
    Engine(written(plugins=use), trust=RUNS_CODE)
    Engine(written(), trust=RUNS_CODE)
    assert [allowed for _, allowed in tensorrt.loads] == [True, False]
    assert tensorrt.libraries == []


EMBEDDED = PluginUse("plugins", "lib.so", "0" * 64, True, {}, "engine")


@pytest.mark.parametrize("changes", [{"plugins": EMBEDDED}, {"options": {"version_compatible": True}}])
def test_code_on_the_processor_needs_the_callers_word(written, tensorrt, changes):
    path = written(**changes)
    with pytest.raises(UsageError, match=r"m\.engine holds code that runs on the processor"):
        load(path)
    with pytest.raises(ModelError, match=r"m\.engine is not among the files that are trusted") as refused:
        load(path, trusted_sha256=["0" * 64], allow_host_code=True)
    assert refused.value.why == f"its SHA-256 is {sha256(path)}."
    assert tensorrt.loads == []
    load(path, trusted_sha256=["0" * 64, sha256(path).upper()])
    load(path, allow_host_code=True)
    assert [allowed for _, allowed in tensorrt.loads] == [True, True]


def test_code_in_a_plan_whose_sidecar_denies_it_needs_the_callers_word_too(written, tensorrt):
    path = written(plan=PLAN + Path(sys.executable).resolve().read_bytes()[:64])
    with pytest.raises(UsageError, match=r"m\.engine holds code that runs on the processor"):
        load(path)
    assert tensorrt.loads == []


def test_hashes_that_are_given_hold_for_every_engine(written, tensorrt):
    with pytest.raises(ModelError, match="is not among the files"):
        load(written(), trusted_sha256=["0" * 64])
    load(written(), trusted_sha256=[sha256(written())])


def test_an_engine_is_read_once(written, tensorrt, monkeypatch):
    """What is loaded is what was hashed, whatever the file holds a moment later."""
    path, check = written(), sidecar.check_trust

    def swapped(*arguments, **options):
        path.write_bytes(PLAN[::-1])
        check(*arguments, **options)

    monkeypatch.setattr(sidecar, "check_trust", swapped)
    Engine(path)
    assert [plan for plan, _ in tensorrt.loads] == [PLAN]


def test_a_library_beside_the_plan_needs_the_callers_word(written, tensorrt, driver_file, tmp_path, monkeypatch):
    use = PluginUse("plugins", "libcustom.so", sha256(driver_file), False, {}, "engine")
    beside = Path(shutil.copy(driver_file, tmp_path / "libcustom.so"))
    with pytest.raises(UsageError, match=r"libcustom\.so holds code"):
        Engine(written(plugins=use))
    with pytest.raises(ModelError, match=r"libcustom\.so is not among"):
        Engine(written(plugins=use), trust=Trust((sha256(written(plugins=use)),)))
    Engine(written(plugins=use), trust=Trust((sha256(written(plugins=use)), sha256(driver_file))))
    (loaded,) = tensorrt.libraries
    beside.write_bytes(b"changed meanwhile")
    assert Path(loaded).read_bytes() == driver_file.read_bytes()
    assert Path(loaded).parent.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("name", ["../evil.so", "/tmp/evil.so", "..", ".", "", "x/evil.so"])
def test_a_sidecar_names_no_library_elsewhere(written, tensorrt, driver_file, tmp_path, name):
    evil = tmp_path.parent / "evil.so"
    shutil.copy(driver_file, evil)
    use = PluginUse("plugins", name, sha256(driver_file), False, {}, "engine")
    with pytest.raises(ModelError, match="cannot be read"):
        Engine(written(plugins=use), trust=RUNS_CODE)
    evil.unlink()
    assert tensorrt.libraries == []


def test_plugins_beside_the_plan_must_be_those_of_the_build(written, tensorrt, driver_file):
    use = PluginUse("plugins", "lib.so", sha256(driver_file), False, {"infsa::EnergyPool::1": 4}, "engine")
    Engine(written(plugins=use), driver_file)
    Engine(written(plugins=use, options={"version_compatible": True}), driver_file, RUNS_CODE)
    assert tensorrt.libraries == [str(driver_file)] * 2
    assert [allowed for _, allowed in tensorrt.loads] == [False, True]
    with pytest.raises(HostError, match="was built with another plugin library"):
        Engine(written(plugins=replace(use, sha256="1" * 64)), driver_file)


def test_plugins_beside_the_plan_are_found_there(written, tensorrt, driver_file, tmp_path, monkeypatch):
    use = PluginUse("plugins", "libcustom.so", sha256(driver_file), False, {"infsa::EnergyPool::1": 4}, "engine")
    monkeypatch.setitem(sys.modules, "infsa_plugins", None)
    with pytest.raises(HostError, match=r"needs the plugin library libcustom\.so") as failed:
        Engine(written(plugins=use))
    assert failed.value.fix == "copy libcustom.so along with the engine."
    shutil.copy(driver_file, tmp_path / "libcustom.so")
    Engine(written(plugins=use), trust=RUNS_CODE)
    assert [Path(library).name for library in tensorrt.libraries] == ["libcustom.so"]


def test_runs_of_several_shapes(written, tensorrt, rng, cuda):
    before = cuda.stand_in_allocated()
    session = TrtSession(written())
    assert (session.runtime, session.max_batch) == ("tensorrt", 4)
    for batch in (2, 4, 1, 3):
        image = rng.standard_normal((batch, 3, 4, 4)).astype(np.float32)
        np.testing.assert_array_equal(session({"image": image})["logits"], expected(image))
    session.close()
    assert cuda.stand_in_allocated() == before


def test_outputs_survive_the_next_run(written, tensorrt, rng):
    session = TrtSession(written())
    images = rng.standard_normal((2, 1, 3, 4, 4)).astype(np.float32)
    first = session({"image": images[0]})["logits"]
    session({"image": images[1]})
    np.testing.assert_array_equal(first, expected(images[0]))


def test_sliced_input_is_read_in_its_own_order(written, tensorrt, rng):
    image = rng.standard_normal((4, 4, 3, 2)).astype(np.float32).transpose(3, 2, 0, 1)
    assert not image.flags.c_contiguous
    np.testing.assert_allclose(TrtSession(written())({"image": image})["logits"], expected(image), rtol=1e-6)


def test_cuda_graphs_are_captured_once_a_shape(written, tensorrt, cuda):
    session = TrtSession(written(), cuda_graph=True)
    launched, image = cuda.stand_in_launched(), np.ones((2, 3, 4, 4), np.float32)
    for _ in range(3):
        session({"image": image})
    assert tensorrt.contexts[0].runs == 2  # one to warm up, one captured
    assert cuda.stand_in_launched() - launched == 2
    session({"image": np.ones((4, 3, 4, 4), np.float32)})  # new buffers: the old graph holds their old addresses
    session({"image": image})
    assert tensorrt.contexts[0].runs == 6


def test_contexts_over_one_engine(written, tensorrt, rng):
    session = TrtSession(written())
    other = session.fork()
    images = rng.standard_normal((2, 2, 3, 4, 4)).astype(np.float32)
    results = [s({"image": image})["logits"] for s, image in zip((session, other), images, strict=True)]
    assert len(tensorrt.loads) == 1
    assert len(tensorrt.contexts) == 2
    for result, image in zip(results, images, strict=True):
        np.testing.assert_array_equal(result, expected(image))
    session.close()
    np.testing.assert_array_equal(other({"image": images[0]})["logits"], expected(images[0]))


def test_shape_outside_the_profile(written, tensorrt, record):
    session = TrtSession(written())
    with pytest.raises(UsageError, match="5x3x4x4 is outside the engine's profile") as failed:
        session({"image": np.zeros((5, 3, 4, 4), np.float32)})
    assert failed.value.why == "it was built for 1x3x4x4 to 4x3x4x4."
    with pytest.raises(UsageError, match="float64"):
        session({"image": np.zeros((1, 3, 4, 4))})
    with pytest.raises(UsageError, match="outside"):
        check_profile(record, {"image": (0, 3, 4, 4)})
    with pytest.raises(UsageError, match="3x4x4 is outside"):
        check_profile(record, {"image": (3, 4, 4)})


def test_no_memory_on_the_device(written, tensorrt, cuda):
    session = TrtSession(written())
    cuda.stand_in_no_memory(1)
    with pytest.raises(HostError, match="cuMemAlloc_v2 failed") as failed:
        session({"image": np.zeros((1, 3, 4, 4), np.float32)})
    assert failed.value.fix == "take a smaller batch."


@pytest.mark.parametrize("lacking", [1, 2])
def test_no_memory_for_a_larger_batch_frees_each_buffer_once(written, tensorrt, cuda, lacking):
    before = cuda.stand_in_allocated()
    session = TrtSession(written())
    session({"image": np.zeros((1, 3, 4, 4), np.float32)})
    cuda.stand_in_no_memory(lacking)
    with pytest.raises(HostError, match="failed"):
        session({"image": np.zeros((4, 3, 4, 4), np.float32)})
    session.close()
    assert cuda.stand_in_allocated() == before


def test_classifying_more_images_than_the_engine_takes_at_once(written, tensorrt, tmp_path):
    paths = []
    for index in range(6):
        paths.append(tmp_path / f"{index}.npy")
        np.save(paths[-1], np.full((4, 4, 3), index / 8, np.float32))
    predictions = Model(TrtSession(written())).predict(paths, top=1)
    assert [prediction.image for prediction in predictions] == [str(path) for path in paths]
    assert tensorrt.contexts[0].runs == 2


def test_threads_share_an_engine_through_its_contexts(written, tensorrt, rng):
    images = rng.standard_normal((24, 1, 3, 4, 4)).astype(np.float32)
    with load(written(), contexts=3) as model, ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda image: model({"image": image})["logits"], images))
    assert len(tensorrt.loads) == 1
    assert 1 <= len(tensorrt.contexts) <= 3
    for result, image in zip(found, images, strict=True):
        np.testing.assert_array_equal(result, expected(image))


def test_engine_of_a_foreign_model(written, tensorrt):
    with pytest.raises(ModelError, match="infsa-deploy did not write"):
        TrtSession(written(metadata=None))


def test_sidecar_from_the_future(written):
    path = written()
    beside = sidecar_path(path)
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"invented": 1}))
    with pytest.raises(ModelError, match="cannot be read"):
        Engine(path)


@pytest.mark.gpu
def test_torch_tensors_stay_where_they_are(tmp_path, tiny):
    import torch

    from infsa_deploy.config import EngineConfig, ExportConfig
    from infsa_deploy.engine.build import build_engine
    from infsa_deploy.export.pipeline import export_reference

    export_reference(tiny("linear"), tmp_path / "m.onnx", ExportConfig())
    build_engine(tmp_path / "m.onnx", tmp_path / "m.engine", EngineConfig(plugins=False))
    session = TrtSession(tmp_path / "m.engine")
    image = torch.randn(2, 3, 16, 24, device="cuda")
    outputs = session.run_tensors({"image": image})
    torch.cuda.synchronize()
    np.testing.assert_array_equal(outputs["logits"].cpu().numpy(), session({"image": image.cpu().numpy()})["logits"])
