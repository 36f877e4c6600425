"""Model repositories: what is in them, against Triton's own schema, and what a second package does."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from infsa_deploy.cli import main
from infsa_deploy.config import ServingConfig
from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.errors import DeployError, HostError, ModelError, UsageError
from infsa_deploy.files import sha256
from infsa_deploy.graph.store import save_model
from infsa_deploy.records.codec import from_json, to_json
from infsa_deploy.records.engine import PluginUse, TensorProfile
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.sessions.ort import OrtSession
from infsa_deploy.serving.package import package
from tests.engine_record import RECORD

ELF_LIBRARY = b"\x7fELF\x02" + bytes(11) + b"\x03\x00" + bytes(40)


def config_of(folder: Path) -> schema.ModelConfig:
    return text_format.Parse((folder / "config.pbtxt").read_text(), schema.ModelConfig())


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def repo(tmp_path) -> Path:
    return tmp_path / "repo"


@pytest.fixture
def engine(digits, tmp_path):
    """An engine of 1 to 16 images, as its sidecar describes it: engine(plugins=PluginUse(...))."""

    def write(**changes) -> Path:
        path = tmp_path / "m.engine"
        path.write_bytes(b"plan" * 9)
        image = TensorProfile("float32", (-1, 1, 64, 64), (1, 1, 64, 64), (8, 1, 64, 64), (16, 1, 64, 64))
        record = replace(
            RECORD,
            flavour_version="11.4.0",
            engine_sha256=sha256(path),
            engine_bytes=36,
            inputs={"image": image},
            outputs={"logits": TensorProfile("float32", (-1, 10))},
            metadata=OrtSession(digits["linear"], threads=1).metadata,
        )
        sidecar_path(path).write_text(to_json(replace(record, **changes)))
        return path

    return write


@pytest.fixture
def library(tmp_path) -> Path:
    path = tmp_path / "lib.so"
    path.write_bytes(ELF_LIBRARY)
    return path


def test_an_onnx_file(digits, repo):
    report = package(digits["linear"], repo, ServingConfig(threads=2, instances=3, queue_delay_us=500))
    assert (report.name, report.version, report.backend) == ("digits_linear", 1, "onnxruntime")
    folder = repo / "digits_linear"
    assert names(folder) == ["1/model.onnx", "README.md", "config.pbtxt", "labels.txt"]
    assert (folder / "1/model.onnx").read_bytes() == digits["linear"].read_bytes()
    assert (folder / "labels.txt").read_text().split() == list("0123456789")
    config = config_of(folder)
    assert (config.backend, config.default_model_filename, config.max_batch_size) == ("onnxruntime", "model.onnx", 32)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("image", schema.TYPE_FP32, [1, 64, 64])]
    assert [(o.name, list(o.dims), o.label_filename) for o in config.output] == [("logits", [10], "labels.txt")]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(g.count, g.kind) for g in config.instance_group] == [(3, schema.ModelInstanceGroup.KIND_CPU)]
    assert config.HasField("response_cache")
    assert not config.response_cache.enable
    assert [(w.batch_size, list(w.inputs["image"].dims)) for w in config.model_warmup] == [
        (1, [1, 64, 64]),
        (32, [1, 64, 64]),
    ]
    assert config.parameters["intra_op_thread_count"].string_value == "2"


def test_our_session_on_a_gpu(digits, repo):
    package(digits["linear"], repo, ServingConfig("python", "digits", max_batch=4, provider="cuda"))
    config = config_of(repo / "digits")
    assert names(repo / "digits" / "1") == ["model.onnx", "model.py"]
    assert (config.backend, config.max_batch_size) == ("python", 4)
    assert config.instance_group[0].kind == schema.ModelInstanceGroup.KIND_GPU
    assert config.parameters["provider"].string_value == "cuda"


def test_any_size(tiny, export, repo):
    path, _ = export(tiny("linear"), dynamic_size=True)
    package(path, repo, ServingConfig())
    config = config_of(repo / "tiny_linear")
    assert list(config.input[0].dims) == [3, -1, -1]
    assert list(config.model_warmup[0].inputs["image"].dims) == [3, 16, 24]


def test_attention_maps(tiny, export, repo):
    path, _ = export(tiny("linear"), attention_maps=True)
    package(path, repo, ServingConfig(ensemble=True))
    for name in ("tiny_linear", "tiny_linear_image"):
        outputs = {output.name: list(output.dims) for output in config_of(repo / name).output}
        assert outputs == {"logits": [5], "attention": [2, 3, 2, 3]}


def test_half_precision_inputs(tiny, export, repo):
    path, _ = export(tiny("linear"), dtype="fp16", keep_io=False)
    package(path, repo, ServingConfig(ensemble=True))
    assert config_of(repo / "tiny_linear").input[0].data_type == schema.TYPE_FP16
    assert config_of(repo / "tiny_linear_decode").output[0].data_type == schema.TYPE_FP16


def test_a_fixed_batch_needs_our_backend(tiny, export, repo):
    path, _ = export(tiny("linear"), static_batch=4)
    with pytest.raises(UsageError, match="takes 4 images a run") as refused:
        package(path, repo, ServingConfig())
    assert "--backend python" in refused.value.fix
    assert not repo.exists()
    package(path, repo, ServingConfig("python"))
    assert config_of(repo / "tiny_linear").max_batch_size == 4
    with pytest.raises(UsageError, match="cannot be given 5 images"):
        package(path, repo, ServingConfig("python", max_batch=5))


@pytest.mark.parametrize("backend", ["auto", "python"])
def test_an_engine_that_takes_no_single_image(engine, repo, backend):
    image = TensorProfile("float32", (-1, 1, 64, 64), (2, 1, 64, 64), (8, 1, 64, 64), (16, 1, 64, 64))
    with pytest.raises(UsageError, match="takes no fewer than 2 images") as refused:
        package(engine(inputs={"image": image}), repo, ServingConfig(backend))
    assert "--min-shapes" in refused.value.fix
    assert not repo.exists()


def test_an_engine(engine, repo):
    path = engine()
    assert package(path, repo, ServingConfig()).backend == "tensorrt"
    config, folder = config_of(repo / "m"), repo / "m"
    assert names(folder / "1") == ["model.plan", "model.plan.json"]
    assert (config.backend, config.default_model_filename, config.max_batch_size) == ("tensorrt", "model.plan", 16)
    assert config.instance_group[0].kind == schema.ModelInstanceGroup.KIND_GPU
    readme = (folder / "README.md").read_text()
    assert "TensorRT has to be 11.4.0, its GPU sm80" in readme
    assert "--backend-config" not in readme
    with pytest.raises(UsageError, match="cannot be given 17"):
        package(path, repo, ServingConfig(max_batch=17))


def test_an_engine_and_its_plugin_library(engine, library, repo):
    layers = {"infsa::EnergyPool::1": 4}
    beside = PluginUse("plugins", "lib.so", sha256(library), False, layers, "engine")
    package(engine(plugins=beside), repo, ServingConfig(plugins=library))
    assert (repo / "m/1/libinfsa_plugins.so").read_bytes() == ELF_LIBRARY
    assert "--backend-config=tensorrt,plugins=/models/m/1/libinfsa_plugins.so" in (repo / "m/README.md").read_text()
    package(engine(plugins=replace(beside, embedded=True)), repo, ServingConfig(name="inside"))
    assert names(repo / "inside/1") == ["model.plan", "model.plan.json"]
    assert "--backend-config=tensorrt,version-compatible=true" in (repo / "inside/README.md").read_text()
    portable = engine(plugins=beside, options={"version_compatible": True})
    package(portable, repo, ServingConfig(name="portable", plugins=library))
    assert (repo / "portable/1/libinfsa_plugins.so").is_file()
    for option in ("plugins=/models/portable/1/libinfsa_plugins.so", "version-compatible=true"):
        assert f"--backend-config=tensorrt,{option}" in (repo / "portable/README.md").read_text()
    with pytest.raises(HostError, match="another plugin library"):
        package(engine(plugins=replace(beside, sha256="0" * 64)), repo, ServingConfig(plugins=library))


def test_an_engine_with_our_session(engine, repo):
    package(engine(flavour="tensorrt-rtx"), repo, ServingConfig("python"))
    assert names(repo / "m/1") == ["model.engine", "model.engine.json", "model.py"]
    assert list(config_of(repo / "m").instance_group[0].gpus) == [0]
    assert "infsa-deploy[rtx]" in (repo / "m/README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flavour": "tensorrt-rtx"}, "tensorrt backend does not load"),
        ({"metadata": None}, "not built from a model of infsa-deploy"),
        ({"engine_bytes": 99}, "is truncated"),
        ({"inputs": {"image": TensorProfile("bfloat16", (-1, 1, 8, 8), *[(1, 1, 8, 8)] * 3)}}, "bfloat16"),
    ],
)
def test_engines_that_are_refused(engine, repo, changes, message):
    with pytest.raises(DeployError, match=message):
        package(engine(**changes), repo, ServingConfig())
    assert not repo.exists()


def test_a_second_package_is_version_2_and_keeps_what_was_tuned(digits, repo):
    package(digits["linear"], repo, ServingConfig(name="digits"))
    config = repo / "digits" / "config.pbtxt"
    config.write_text(config.read_text().replace("microseconds: 1000", "microseconds: 77") + "# tuned\n")
    report = package(digits["pure"], repo, ServingConfig(name="digits", instances=2))
    assert (report.version, report.models) == (2, {"digits": 2})
    assert report.kept == ("dynamic_batching", "instance_group")
    assert config.read_text().endswith("# tuned\n")
    assert (repo / "digits/1/model.onnx").read_bytes() == digits["linear"].read_bytes()
    assert (repo / "digits/2/model.onnx").read_bytes() == digits["pure"].read_bytes()
    assert "version 2" in (repo / "digits/README.md").read_text()


def test_another_model_of_the_same_name(digits, tiny, export, repo):
    package(digits["linear"], repo, ServingConfig(name="m"))
    before = names(repo)
    path, _ = export(tiny("linear"))
    for other, options, fields in (
        (path, {}, "input, output, labels"),
        (digits["pure"], {"backend": "python"}, "backend"),
    ):
        with pytest.raises(UsageError, match="holds another model") as refused:
            package(other, repo, ServingConfig(name="m", **options))
        assert fields in refused.value.why
    (repo / "m/config.pbtxt").write_text("nonsense: 1")
    with pytest.raises(ModelError, match="cannot be read"):
        package(digits["linear"], repo, ServingConfig(name="m"))
    assert names(repo) == before


def test_the_ensemble_follows_the_model(digits, tiny, export, repo):
    report = package(digits["linear"], repo, ServingConfig(name="d", ensemble=True))
    assert report.models == {"d": 1, "d_decode": 1, "d_image": 1}
    assert names(repo / "d_image") == ["1/.keep", "config.pbtxt"]
    steps = config_of(repo / "d_image").ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["d_decode", "d"]
    assert config_of(repo / "d_image").input[0].data_type == schema.TYPE_STRING
    assert package(digits["pure"], repo, ServingConfig(name="d")).models == {"d": 2}
    first = tiny("linear")
    package(export(first)[0], repo, ServingConfig(name="t", ensemble=True))
    moved = replace(first, image=replace(first.image, mean=(0.1, 0.2, 0.3)))
    assert package(export(moved)[0], repo, ServingConfig(name="t")).models == {"t": 2, "t_decode": 2}
    image = from_json(ImageSpec, (repo / "t_decode/2/image.json").read_text())
    assert image.mean == (0.1, 0.2, 0.3)


def test_external_weights_travel(tiny, export, repo, monkeypatch):
    monkeypatch.setitem(save_model.__kwdefaults__, "external_data_from", 0)
    path, _ = export(tiny("linear"))
    package(path, repo, ServingConfig())
    assert names(repo / "tiny_linear/1") == ["model.onnx", "tiny_linear.onnx.data"]
    OrtSession(repo / "tiny_linear/1/model.onnx", threads=1)


def test_nothing_half_written(digits, repo, monkeypatch):
    package(digits["linear"], repo, ServingConfig(name="m"))
    before = names(repo)

    def full(source, target):
        Path(target).write_bytes(b"half")
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("infsa_deploy.serving.repository.shutil.copyfile", full)
    for name in ("m", "other"):
        with pytest.raises(HostError) as failed:
            package(digits["pure"], repo, ServingConfig(name=name))
        assert "disk is full" in failed.value.why
    assert names(repo) == before
    assert [path.name for path in repo.iterdir()] == ["m"]


def test_the_command(digits, repo, capsys, tmp_path):
    def typed(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["package", *map(str, arguments)])
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    assert typed(digits["linear"], "--format", "triton", "-o", repo)[:2] == (0, f"{repo}/digits_linear/1\n")
    code, out, err = typed(digits["linear"], "-o", repo, "--queue-delay-us", "9", "--json")
    assert (code, json.loads(out)["version"]) == (0, 2)
    assert "would change dynamic_batching" in err
    (tmp_path / "file").touch()
    for arguments, expected, message in (
        ((digits["linear"], "-o", tmp_path / "no/repo"), 2, "mkdir -p"),
        ((digits["linear"], "-o", tmp_path / "file"), 2, "is no folder"),
        ((digits["linear"], "-o", repo, "--name", "a/b"), 2, "cannot name a model"),
        ((tmp_path / "missing.onnx", "-o", repo), 4, "does not exist"),
        ((tmp_path / "file", "-o", repo), 4, "is empty"),
    ):
        code, out, err = typed(*arguments)
        assert (code, out) == (expected, "")
        assert message in err


def test_the_model_is_not_replaced_by_what_is_packaged(digits, repo):
    package(digits["linear"], repo, ServingConfig(name="m"))
    (repo / "m" / "README.md").unlink()
    os.link(digits["linear"], repo / "m" / "README.md")
    with pytest.raises(UsageError, match=r"README\.md would be replaced"):
        package(digits["linear"], repo, ServingConfig(name="m"))
    assert sorted(names(repo / "m")) == ["1/model.onnx", "README.md", "config.pbtxt", "labels.txt"]
