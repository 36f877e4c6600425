"""TensorRT and TensorRT-RTX as data: what they are called, what they build for, which options they have."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from infsa_deploy.config import EngineConfig
from infsa_deploy.errors import HostError, UsageError
from infsa_deploy.records.engine import Gpu

FALLBACK_TARGET = "sm80"


@dataclass(frozen=True)
class Flavor:
    """One builder of engines.

    Attributes:
        name: as typed after `--backend`.
        title: as written in messages.
        module: Python package.
        minimum: oldest version that has what is used here.
        install: how to install it.
        targets: architectures it builds for on any machine; None where it builds for the GPU it runs on.
        options: the options of EngineConfig it has beyond the common ones.
        needs_gpu: the options that only work where there is a GPU.
        parser_alias: (package, file in it, name the ONNX parser looks it up by) where the two names differ.
    """

    name: str
    title: str
    module: str
    minimum: tuple[int, int]
    install: str
    targets: tuple[str, ...] | None
    options: frozenset[str]
    needs_gpu: frozenset[str] = frozenset()
    parser_alias: tuple[str, str, str] | None = None

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


TENSORRT = Flavor(
    name="tensorrt",
    title="TensorRT",
    module="tensorrt",
    minimum=(10, 13),
    install="pip install 'infsa-deploy[gpu]'",
    targets=None,
    options=frozenset({"timing_cache", "version_compatible", "hardware_compatible", "strip", "refit"}),
)
TENSORRT_RTX = Flavor(
    name="tensorrt-rtx",
    title="TensorRT-RTX",
    module="tensorrt_rtx",
    minimum=(1, 1),
    install="pip install 'infsa-deploy[rtx]'",
    targets=("sm75", "sm80", "sm86", "sm89", "sm120", "sm121"),
    options=frozenset({"strip", "refit"}),
    needs_gpu=frozenset({"strip", "refit"}),
    parser_alias=("tensorrt_rtx_libs", "libtensorrt_rtx.so.1", "libtensorrt_rtx.so"),
)
FLAVORS = (TENSORRT, TENSORRT_RTX)
OPTIONAL = ("timing_cache", "version_compatible", "hardware_compatible", "strip", "refit")


def choose(backend: str, gpu: Gpu | None) -> Flavor:
    """The flavour for `backend`; `auto` takes TensorRT where it is installed beside a GPU, else TensorRT-RTX.

    Raises:
        HostError: it is not installed, or needs a GPU and there is none.
    """
    if backend == "auto":
        backend = TENSORRT.name if TENSORRT.installed and gpu else TENSORRT_RTX.name
        if not TENSORRT_RTX.installed and backend == TENSORRT_RTX.name:
            raise HostError(
                "no builder of engines can be used here.",
                f"TensorRT-RTX is not installed, and TensorRT {'has no GPU here' if TENSORRT.installed else 'is not'}.",
                f"{TENSORRT_RTX.install} (no GPU needed), or on the GPU machine: {TENSORRT.install}",
            )
    flavor = next(flavor for flavor in FLAVORS if flavor.name == backend)
    if not flavor.installed:
        raise HostError(f"{flavor.title} is not installed.", f"Python finds no {flavor.module}.", flavor.install)
    if flavor.targets is None and gpu is None:
        raise HostError(
            f"{flavor.title} cannot build here.",
            "it builds on the GPU the engine is for, and there is none.",
            f"build there, or for {', '.join(TENSORRT_RTX.targets or ())} with --backend {TENSORRT_RTX.name}.",
        )
    return flavor


def check_options(flavor: Flavor, config: EngineConfig, gpu: Gpu | None) -> None:
    """Raise UsageError for an option `flavor` has not, HostError for one that needs a GPU where there is none."""
    for option in OPTIONAL:
        spelling = f"--{option.replace('_', '-')}"
        if not getattr(config, option):
            continue
        if option not in flavor.options:
            fix = f"leave it out, or use --backend {TENSORRT.name}."
            raise UsageError(f"{flavor.title} has no {spelling}.", "the option is TensorRT's alone.", fix)
        if option in flavor.needs_gpu and gpu is None:
            raise HostError(
                f"{spelling} needs a GPU with {flavor.title}.",
                "its compiler asks the driver about the weights' layout, and there is none.",
                "leave it out, or build on a machine with a GPU.",
            )


def choose_targets(flavor: Flavor, asked: tuple[str, ...], gpu: Gpu | None) -> tuple[str, ...]:
    """The architectures to build for: those asked, else the GPU present, else sm80.

    Raises:
        UsageError: the flavour cannot build for one of them.
    """
    targets = asked or (gpu.sm if gpu else FALLBACK_TARGET,)
    known = flavor.targets or ((gpu.sm,) if gpu else ())
    for target in targets:
        if target not in known:
            raise UsageError(
                f"{flavor.title} cannot build for {target} here.",
                f"it knows {', '.join(known)}.",
                f"build on that GPU with --backend {TENSORRT.name}, or choose one of these.",
            )
    return targets


def alias_folder(flavor: Flavor, folder: Path) -> Path | None:
    """Make `folder` hold the flavour's library under the name its ONNX parser opens it by; None if they agree.

    TensorRT-RTX's parser opens `libtensorrt_rtx.so` when it meets a plugin, the wheel has `libtensorrt_rtx.so.1`
    alone, and the parser ends the process when the name is not found. The folder goes on the loader's path of the
    process that builds; the loader sees by the file's inode that it is the library already there.
    """
    if flavor.parser_alias is None:
        return None
    package, file, alias = flavor.parser_alias
    spec = importlib.util.find_spec(package)
    libraries = [Path(place) / file for place in (spec.submodule_search_locations or ())] if spec else []
    present = [library for library in libraries if library.exists()]
    if not present:
        return None
    (folder / alias).symlink_to(present[0])
    return folder
