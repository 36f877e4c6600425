"""The C++ library built as its users build it, under sanitizers too, and the stand-ins that its engines run on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import headers
import pytest

from infsa_deploy.engine.sidecar import sidecar_path
from infsa_deploy.files import sha256
from infsa_deploy.records.codec import to_json
from infsa_deploy.records.engine import PrecisionFound, TensorProfile
from infsa_deploy.records.model import ImageSpec
from tests.engine_record import RECORD as FP16_RECORD
from tests.plugins.embed.stubs import write_stubs

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "embed_tests"  # kept between runs
VERSION = "1.7.1.116"  # of TensorRT-RTX, as the stand-in gives it
DECODERS = "#include <cstdio>\n#include <png.h>\n#include <jpeglib.h>\n"  # which the example uses
SANITIZERS = {"asan": "-fsanitize=address,undefined -fno-sanitize-recover=all", "tsan": "-fsanitize=thread"}


@dataclass(frozen=True)
class Sdk:
    """Folders laid out as TensorRT-RTX and CUDA install themselves, and nlohmann-json's headers."""

    tensorrt: Path
    cuda: Path
    json: Path

    @property
    def settings(self) -> list[str]:
        """What plugins/embed is configured with."""
        found = {"INFSA_FLAVOUR": "tensorrt-rtx", "TENSORRT_ROOT": self.tensorrt, "CUDA_ROOT": self.cuda}
        found |= {"NLOHMANN_JSON_INCLUDE": self.json, "INFSA_WERROR": "ON"}
        return [f"-D{name}={value}" for name, value in found.items()]


def command(*words: object, **options: object) -> None:
    """Run a command that has to succeed."""
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if result.returncode:
        pytest.fail(f"{words}\n{result.stdout}\n{result.stderr}", pytrace=False)


def configure_and_build(source: Path, build: Path, *settings: str) -> None:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    command("cmake", "-S", source, "-B", build, *generator, *settings)
    command("cmake", "--build", build, "--parallel", "2")


def sanitized(sanitizer: str) -> list[str]:
    """A build type that adds no flags of its own: optimising would take most of the time of these tests."""
    return [f"-DCMAKE_CXX_FLAGS={SANITIZERS[sanitizer]} -O0 -g1", "-DCMAKE_BUILD_TYPE=None"]


def _has_decoders() -> bool:
    check = ["g++", "-x", "c++", "-fsyntax-only", "-"]
    return subprocess.run(check, input=DECODERS, text=True, capture_output=True, check=False).returncode == 0


def _json_headers() -> Path | None:
    package = headers.package_folder("nlohmann_json")
    places = [Path("/usr/include"), Path("/usr/local/include"), *([package / "include"] if package else [])]
    return next((place for place in places if (place / "nlohmann" / "json.hpp").exists()), None)


@pytest.fixture(scope="session")
def sdk() -> Sdk:
    missing = [name for name in ("g++", "cmake") if not shutil.which(name)]
    missing += [name for name in ("tensorrt_rtx_libs", "triton") if not importlib.util.find_spec(name)]
    missing += [] if missing or _has_decoders() else ["libpng-dev", "libjpeg-dev"]
    json = _json_headers()
    missing += [] if json else ["nlohmann-json"]
    if missing or json is None:
        pytest.skip(f"the C++ library needs {', '.join(missing)} to be built")
    root = BUILD / "sdk"
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("tensorrt/lib", "cuda"):
        (root / folder).mkdir(parents=True)
    (root / "tensorrt" / "include").symlink_to(headers.wheel_headers(BUILD / "headers"))
    (root / "cuda" / "include").symlink_to(headers.cuda_headers())
    library = headers.package_folder("tensorrt_rtx_libs") / "libtensorrt_rtx.so.1"
    (root / "tensorrt" / "lib" / library.name).symlink_to(library)
    return Sdk(root / "tensorrt", root / "cuda", json)


@pytest.fixture(scope="session")
def stand_ins(sdk) -> Path:
    """A folder with a libcuda.so.1 and a libtensorrt_rtx.so.1 that need no GPU."""
    folder = BUILD / "stand_ins"
    folder.mkdir(parents=True, exist_ok=True)
    write_stubs(sdk.tensorrt / "include", folder / "stubs.h")
    include = ["-I", folder, "-isystem", sdk.tensorrt / "include", "-isystem", sdk.cuda / "include"]
    for source, name in (("driver", "libcuda.so.1"), ("tensorrt", "libtensorrt_rtx.so.1")):
        compiler = ["g++", "-std=c++17", "-O1", "-g", "-w", "-shared", "-fPIC", *include]
        command(*compiler, HERE / "native" / f"stand_in_{source}.cpp", "-o", folder / name, f"-Wl,-soname,{name}")
    return folder


@pytest.fixture(scope="session")
def installed(sdk, tmp_path_factory) -> Callable[[str], Path]:
    """Build and install the library under a sanitizer: installed("asan") is the prefix, where asan has the example."""
    done: dict[str, Path] = {}

    def build(sanitizer: str) -> Path:
        if sanitizer not in done:
            flags = sanitized(sanitizer)
            prefix = tmp_path_factory.mktemp(sanitizer)
            example = f"-DINFSA_EXAMPLE={'ON' if sanitizer == 'asan' else 'OFF'}"
            configure_and_build(ROOT / "plugins" / "embed", BUILD / sanitizer, *sdk.settings, *flags, example)
            command("cmake", "--install", BUILD / sanitizer, "--prefix", prefix)
            done[sanitizer] = prefix
        return done[sanitizer]

    return build


@pytest.fixture(scope="session")
def probe(installed, tmp_path_factory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the consumer's program, which found the installed library by find_package: probe("load", engine)."""
    programs: dict[str, Path] = {}

    def run(
        *words: object, sanitizer: str = "asan", on: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        if sanitizer not in programs:
            folder = tmp_path_factory.mktemp(f"consumer_{sanitizer}")
            flags = sanitized(sanitizer)
            source = shutil.copytree(HERE / "consumer", folder / "source")
            configure_and_build(source, folder / "build", f"-DCMAKE_PREFIX_PATH={installed(sanitizer)}", *flags)
            programs[sanitizer] = folder / "build" / "probe"
        result = execute(programs[sanitizer], *words, on=on, **more)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    return run


def execute(program: Path, *words: object, on: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program, on the libraries in the folder `on` where one is given."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"} | more
    if on:
        environment["LD_LIBRARY_PATH"] = str(on)
    typed = [str(word) for word in (program, *words)]
    return subprocess.run(typed, capture_output=True, text=True, env=environment, check=False)


def reports(text: str) -> list[tuple[int, str]]:
    """Exit codes and errors that the program reported, in order."""
    blocks = [block.split("\n", 1) for block in text.split("\n\n") if block and block[0].isdigit()]
    return [(int(code), rest[0] if rest else "") for code, *rest in blocks]


RECORD = replace(
    FP16_RECORD,
    flavour="tensorrt-rtx",
    flavour_version=VERSION,
    outputs={"logits": TensorProfile("float32", (-1, 5))},
    precision=PrecisionFound(None, {}, {}, {}),
    metadata=replace(FP16_RECORD.metadata, classes=("ant", "bee", "cat", "doe", "elk"), dtype="fp32"),
)


@pytest.fixture
def engine(tmp_path) -> Callable[..., Path]:
    """Write a plan of the stand-in and its sidecar, changed: engine("refused", targets=("sm90",), image=spec)."""

    def write(plan: str = "a plan", name: str = "m.engine", image: ImageSpec | None = None, **changes: object) -> Path:
        path = tmp_path / name
        path.write_text(plan)
        record = replace(RECORD, engine_sha256=sha256(path), engine_bytes=path.stat().st_size)
        if image:
            record = replace(record, metadata=replace(record.metadata, image=image))
        sidecar_path(path).write_text(to_json(replace(record, **changes)))
        return path

    return write
