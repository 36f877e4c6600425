"""The library as others meet it: built and used from the README alone, and the example beside `infsa-deploy run`."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from infsa_deploy.config import EngineConfig
from infsa_deploy.engine import driver
from infsa_deploy.engine.build import Listener, build_engine
from infsa_deploy.records.engine import TensorProfile
from infsa_deploy.records.model import ImageSpec
from infsa_deploy.runtime.classify import name_classes
from infsa_deploy.runtime.pictures.preprocess import preprocess, read_image
from tests.plugins.embed.conftest import RECORD, ROOT, command, configure_and_build, execute
from tests.plugins.embed.pictures import twenty


def batch(paths: list[Path], spec: ImageSpec) -> np.ndarray:
    return np.concatenate([preprocess(read_image(path), spec) for path in paths])


def configured(sdk, folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    typed = ["cmake", "-S", str(ROOT / "plugins" / "embed"), "-B", str(folder), *sdk.settings, *settings]
    return subprocess.run(typed, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def stranger(sdk, tmp_path_factory) -> Path:
    """What the README says of C++, done in a folder that holds nothing else: the program and where it was installed."""
    folder = tmp_path_factory.mktemp("stranger")
    section = (ROOT / "README.md").read_text().split("## In a C++ program")[1].split("\n## ")[0]
    install, cmake, program = (re.search(rf"```{kind}\n(.*?)```", section, re.S)[1] for kind in ("", "cmake", "cpp"))
    assert len((cmake + program).splitlines()) <= 30
    places = {"/opt/tensorrt": sdk.tensorrt, "/usr/local/cuda": sdk.cuda, "/opt/infsa": folder / "installed"}
    places |= {"plugins/embed": ROOT / "plugins" / "embed", "build/embed": folder / "build"}
    places |= {"INFSA_FLAVOUR=tensorrt ": "INFSA_FLAVOUR=tensorrt-rtx "}
    for written, here in places.items():
        assert written in install
        install = re.sub(rf"(?<![\w/]){re.escape(written)}", str(here), install)
    configure, *others = (shlex.split(line) for line in install.splitlines())
    command(*configure, f"-DNLOHMANN_JSON_INCLUDE={sdk.json}", "-DINFSA_WERROR=ON")
    for words in others:
        command(*words)
    source = folder / "mine"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(cmake)
    (source / "main.cpp").write_text(program)
    configure_and_build(source, folder / "mine_build", f"-DCMAKE_PREFIX_PATH={folder / 'installed'}")
    return folder


def test_the_readmes_program(stranger, stand_ins, engine):
    """A picture of one colour: each logit is ten times the normalised value, (200/255 - 1/2) / (1/2)."""
    program = stranger / "mine_build" / "mine"
    result = execute(program, engine(), on=stand_ins)
    assert result.returncode == 0, result.stderr
    names, logits = zip(*(line.split() for line in result.stdout.splitlines()), strict=True)
    assert names == RECORD.metadata.classes
    np.testing.assert_allclose(
        [float(logit) for logit in logits], 10 * (200 / 255 - 0.5) / 0.5, rtol=1e-5
    )  # as printed


def test_the_package_says_what_it_is(stranger):
    package = next((stranger / "installed").rglob("infsaConfig.cmake")).parent
    assert 'INFSA_FLAVOUR "tensorrt-rtx"' in (package / "infsaConfig.cmake").read_text()
    headers = sorted(path.name for path in (stranger / "installed" / "include" / "infsa").iterdir())
    assert headers == ["engine.h", "error.h", "preprocess.h", "record.h", "tensor.h"]
    library = next((stranger / "installed").rglob("libinfsa_engine.so"))
    linked = execute("ldd", library).stdout
    assert "libtensorrt_rtx.so.1 => " in linked
    assert "not found" not in linked
    for forbidden in ("libcuda", "libcudart", "python", "opencv"):
        assert forbidden not in linked


def test_what_the_example_finds_missing(stranger, engine, tmp_path):
    if driver.find_gpu() is not None:
        pytest.skip("needs a machine without a GPU")
    example = next((stranger / "installed").rglob("infsa_classify"))
    sample = ROOT / "models" / "infsa_models" / "samples" / "digit_7.png"
    result = execute(example, engine(), sample)
    assert result.returncode == 3
    assert result.stderr.startswith(f"error: running {engine()} needs an NVIDIA GPU and its driver.\n")
    assert result.stdout == ""
    assert execute(example, tmp_path / "none.engine", sample).returncode == 4
    assert execute(example, engine()).returncode == 2


def test_a_real_engine_is_read_and_preprocessed_for(stranger, shared_export, tmp_path):
    """TensorRT-RTX builds it; the example reads its sidecar, makes run's tensor, and stops where a GPU is needed."""
    if driver.find_gpu() is not None:
        pytest.skip("needs a machine without a GPU")
    plan = tmp_path / "m.engine"
    record = build_engine(
        shared_export("linear"),
        plan,
        EngineConfig(plugins=False, backend="tensorrt-rtx", targets=("sm80",)),
        Listener(),
    )
    example, pictures = next((stranger / "installed").rglob("infsa_classify")), twenty(tmp_path)
    assert execute(example, plan, *pictures).returncode == 3
    assert execute(example, "--tensor", tmp_path / "out", plan, *pictures).returncode == 0
    found = np.fromfile(tmp_path / "out", np.float32).reshape(20, 3, 16, 24)
    assert np.abs(found - batch(pictures, record.metadata.image)).max() <= 1e-6


@pytest.mark.parametrize("full", [False, True], ids=["any batch", "full batches of 3"])
def test_the_example_prints_what_run_prints(stranger, stand_ins, engine, tmp_path, full):
    """Class and score of twenty pictures, on the stand-in's arithmetic: ten times the mean of each fifth value."""
    spec, pictures = ImageSpec(3, 40, 56, (0.4,) * 3, (0.02,) * 3), twenty(tmp_path)
    profile = (
        TensorProfile("float32", (3, 3, 40, 56))
        if full
        else TensorProfile("float32", (-1, 3, 40, 56), (1, 3, 40, 56), (2, 3, 40, 56), (4, 3, 40, 56))
    )
    example = next((stranger / "installed").rglob("infsa_classify"))
    result = execute(example, engine(image=spec, inputs={"image": profile}), *pictures, on=stand_ins)
    assert result.returncode == 0, result.stderr
    lines = []
    for path, image in zip(pictures, batch(pictures, spec).astype(np.float64), strict=True):
        logits = np.array([10 * image.ravel()[k::5].mean() for k in range(5)])
        prediction = name_classes(str(path), logits, RECORD.metadata.classes, 3)
        ranked = zip(prediction.classes, prediction.scores, strict=True)
        lines.append(f"{path}: " + ", ".join(f"{name} ({score:.1%})" for name, score in ranked))
    assert result.stdout.splitlines() == lines
    assert len({line.split(": ")[1] for line in lines}) > 5


def test_tensorrt_itself_is_what_is_configured_by_default(sdk, tmp_path):
    """Its headers are the same; its library is not in reach, and configuring says what to give."""
    found = configured(sdk, tmp_path / "none", "-DINFSA_FLAVOUR=tensorrt")
    assert found.returncode != 0
    assert "TENSORRT_LIBRARY is not found." in found.stderr
    assert "-D TENSORRT_ROOT=FOLDER" in " ".join(found.stderr.split())
    (tmp_path / "libnvinfer.so").symlink_to(sdk.tensorrt / "lib" / "libtensorrt_rtx.so.1")
    named = configured(
        sdk, tmp_path / "named", "-DINFSA_FLAVOUR=tensorrt", f"-DTENSORRT_LIBRARY={tmp_path}/libnvinfer.so"
    )
    assert named.returncode == 0, named.stderr
    wrong = configured(sdk, tmp_path / "wrong", "-DINFSA_FLAVOUR=onnx")
    assert "INFSA_FLAVOUR is onnx." in wrong.stderr
