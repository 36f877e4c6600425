"""What goes in: where a model comes from, how it is to be exported, and what engine is wanted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from infsa_deploy.errors import UsageError

Hops = int | Literal["inf"]
Dtype = Literal["fp32", "fp16", "bf16"]
Precision = Literal["fp16", "bf16", "int8"]
Int8 = Literal["dynamic", "static"]

VARIANTS = ("linear", "pure", "softmax")
DTYPES: tuple[Dtype, ...] = ("fp32", "fp16", "bf16")
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "int8")
BACKENDS = ("auto", "tensorrt", "tensorrt-rtx")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelSource:
    """How to build the reference model again, bit for bit, from names and files.

    Attributes:
        model: name of a zoo model, or None.
        weights: path of a checkpoint, a file or a folder, or None; beside `model` it replaces the zoo's weights.
        module: `package.module:factory` of a foreign `nn.Module`, or None.
        variant: stated attention variant, where the checkpoint does not say.
        heads: stated number of heads, where the checkpoint does not say.
        grid: (rows, columns) of patches a checkpoint was trained on, where it does not say and they are no square.
        image_size: (height, width) in pixels, or None for the model's own.
        hops: Neumann hops of pure attention, or None for the model's own.
        power_iterations: power iterations of linear attention, or None for the model's own.
        key: which weights of a checkpoint that holds several sets, such as `model_ema`.
    """

    model: str | None = None
    weights: str | None = None
    module: str | None = None
    variant: str | None = None
    heads: int | None = None
    image_size: tuple[int, int] | None = None
    hops: Hops | None = None
    power_iterations: int | None = None
    grid: tuple[int, int] | None = None
    key: str | None = None

    @property
    def name(self) -> str:
        """A short name of the model that this builds."""
        if self.model or not (self.weights or self.module):
            parts = [self.model or f"digits_{self.variant or 'linear'}"]  # what export takes where nothing is named
        else:
            parts = [Path(self.weights).stem if self.weights else str(self.module).rpartition(":")[2]]
        parts += [f"hops{self.hops}"] if self.hops not in (None, 1) else []
        parts += [f"power{self.power_iterations}"] if self.power_iterations not in (None, 1) else []
        return "_".join(parts)


@dataclass(frozen=True)
class ExportConfig:
    """How a model becomes an ONNX file.

    Attributes:
        fold: replace attention by its deployable form on custom ops; False keeps the reference formula.
        static_batch: fixed batch size, or None for a dynamic batch axis.
        dynamic_size: leave height and width free, in whole patches; positions are interpolated in the graph.
        tile_tokens: do token-wise work so many tokens at a time, for images too large to hold otherwise, or None.
        dtype: type of weights and activations, one of DTYPES.
        int8: quantise matrix products, `dynamic` (for CPUs) or `static` (for engines), or None.
        keep_io: keep graph inputs and outputs float32 when `dtype` is narrower.
        attention_maps: add the output `attention` [B, L, H, h, w], one map of the patch grid a layer and head.
        require_ops: an attention that cannot be put on custom ops, or none at all, is an error.
    """

    fold: bool = True
    static_batch: int | None = None
    dynamic_size: bool = False
    tile_tokens: int | None = None
    dtype: Dtype = "fp32"
    int8: Int8 | None = None
    keep_io: bool = True
    attention_maps: bool = False
    require_ops: bool = False

    def __post_init__(self) -> None:
        if self.tile_tokens and (self.int8 or self.dtype != "fp32"):
            raise UsageError(
                "--tile-tokens goes with float32 only.",
                "tiles are for ONNX Runtime on a CPU, engines have no loops over sequences.",
                "leave out --int8 and --dtype, or the tiles.",
            )
        if not self.keep_io and self.dtype == "fp32":
            raise UsageError(
                "--low-precision-io goes with a narrow --dtype.",
                "inputs and outputs are float32 otherwise.",
                "add --dtype fp16, or leave it out.",
            )
        if self.int8 and self.dtype != "fp32":
            raise UsageError(
                f"--int8 and --dtype {self.dtype} cannot be combined.",
                "the products that int8 leaves alone stay in float32; an engine builder narrows them itself.",
                "choose one of the two.",
            )
        if self.require_ops and not self.fold:
            raise UsageError(
                "--require-ops and --no-fold cannot be combined.",
                "the reference formula has no custom ops.",
                "choose one of the two.",
            )


@dataclass(frozen=True)
class ServingConfig:
    """How a model is put into a server's repository.

    Attributes:
        backend: `auto`, the server's own for the file, or `python`, this package in Triton's python backend.
        name: the model's name there; default: the file's.
        max_batch: most images a run; default: what the model takes, at most 32.
        instances: copies of the model that run at once.
        queue_delay_us: microseconds that a request may wait for others to share a run with.
        provider: `cpu` or `cuda`, for ONNX files.
        threads: CPU threads within an operator; default: every core.
        ensemble: add a model that takes the bytes of image files.
        plugins: plugin library of an engine that does not hold it; default: the one beside it, or the installed one.
    """

    backend: str = "auto"
    name: str | None = None
    max_batch: int | None = None
    instances: int = 1
    queue_delay_us: int = 1000
    provider: str = "cpu"
    threads: int | None = None
    ensemble: bool = False
    plugins: Path | None = None


@dataclass(frozen=True)
class Trust:
    """Which engines may run code on this machine's processor.

    Plans that hold a plugin library, plans of several versions, and a library that lies beside its plan do so. The
    hashes in a sidecar are as little signed as the files that they describe, and do not tell who wrote them.

    Attributes:
        sha256: hashes, from a trusted source, of the plan and of a library beside it; where any is given, no other
            file is loaded.
        host_code: whoever can write the engine's folder may run code in this process.
    """

    sha256: tuple[str, ...] = ()
    host_code: bool = False


@dataclass(frozen=True)
class EngineConfig:
    """What engine is wanted from an ONNX file.

    Attributes:
        backend: `auto`, `tensorrt` or `tensorrt-rtx`.
        targets: GPU architectures such as `sm80`; empty takes the GPU present, or sm80 where there is none.
        precision: the type the products must have: `fp16`, `bf16`, `int8`, or None for the model's own types.
        plugins: run the custom ops as GPU plugins; False builds them from their ONNX function bodies.
        plugin_library: the plugin library, or None for the installed one.
        min_shapes, opt_shapes, max_shapes: by input name; inputs left out take defaults from the model.
        workspace_bytes: scratch memory a layer may use, or None for the builder's own limit.
        optimization_level: 0 to 5, or None for the builder's own.
        timing_cache: file of kernel timings, read and written back.
        version_compatible: an engine that later versions of the same major load.
        hardware_compatible: an engine for every GPU from Ampere on.
        embed_plugins: put the library into the plan: True must, False must not, None where the builder does it.
        strip: leave the weights out of the plan.
        refit: let weights be replaced later.
    """

    backend: str = "auto"
    targets: tuple[str, ...] = ()
    precision: Precision | None = None
    plugins: bool = True
    plugin_library: Path | None = None
    min_shapes: Mapping[str, Shape] = field(default_factory=dict)
    opt_shapes: Mapping[str, Shape] = field(default_factory=dict)
    max_shapes: Mapping[str, Shape] = field(default_factory=dict)
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = None
    version_compatible: bool = False
    hardware_compatible: bool = False
    embed_plugins: bool | None = None
    strip: bool = False
    refit: bool = False


def parse_image_size(text: str) -> tuple[int, int]:
    """Read `224` or `480x640` (height x width, pixels) as (height, width); UsageError otherwise."""
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text.strip().lower())
    if not match:
        raise UsageError(
            f"image size {text!r} is not valid.",
            "it is one number, or height x width, in pixels.",
            "write 224 or 480x640.",
        )
    height = int(match[1])
    return height, int(match[2] or height)


def parse_grid(text: str) -> tuple[int, int]:
    """Read `14x28` (rows x columns of patches); UsageError otherwise."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip().lower())
    if not match:
        raise UsageError(f"grid {text!r} is not valid.", "it is rows x columns, in patches.", "write 14x28.")
    return int(match[1]), int(match[2])


def parse_hops(text: str) -> Hops:
    """Read a hop count >= 1, or `inf` for the whole Neumann series; UsageError otherwise."""
    if text == "inf":
        return "inf"
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"hops {text!r} is not valid.",
            "attention needs at least one hop; inf sums the series to its end.",
            "write a whole number from 1, or inf.",
        )
    return int(text)


def parse_shapes(text: str) -> dict[str, Shape]:
    """Read `image:1x3x224x224` or `image:[1,3,224,224]`, several apart by commas, by name; UsageError otherwise."""
    shapes: dict[str, Shape] = {}
    for item in re.split(r",(?![^\[]*\])", text.replace(" ", "")):
        match = re.fullmatch(r"(.+):(?:\[(\d+(?:,\d+)*)\]|(\d+(?:x\d+)*))", item)
        sizes = tuple(map(int, re.split("[x,]", match[2] or match[3]))) if match else ()
        if match is None or 0 in sizes:
            raise UsageError(
                f"shape {item!r} is not valid.",
                "it is an input's name, a colon, and one size from 1 for each axis.",
                "write image:1x3x224x224 or image:[1,3,224,224].",
            )
        shapes[match[1]] = sizes
    return shapes


def parse_targets(text: str) -> tuple[str, ...]:
    """Read `sm80` or `sm80,sm86,...` as a tuple without repetitions; UsageError otherwise."""
    targets = tuple(dict.fromkeys(text.lower().replace(" ", "").split(",")))
    for target in targets:
        if not re.fullmatch(r"sm[1-9]\d{1,2}", target):
            raise UsageError(
                f"target {target!r} is not valid.",
                "a target is a GPU's compute capability without the point: an A100 has 8.0.",
                "write sm80, or several: sm80,sm86.",
            )
    return targets


def parse_bytes(text: str) -> int:
    """Read `512M` or `4G` (powers of 1024) as bytes; UsageError otherwise."""
    match = re.fullmatch(r"([1-9]\d*)([KMG])(?:iB)?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"size {text!r} is not valid.", "a size is a number with its unit.", "write 512M or 4G.")
    return int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2].upper()]
