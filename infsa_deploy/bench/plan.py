"""The grid as data: which cells are measured, and who is in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infsa_deploy.bench.contenders import CONTENDERS, Contender
from infsa_deploy.config import ModelSource, parse_image_size
from infsa_deploy.errors import UsageError
from infsa_deploy.records import ModelMetadata
from infsa_deploy.runtime.artefact import is_engine

LADDER = (224, 384, 512, 1024, 2048, 4096, 9216)  # the paper's resolutions, and steps on the way there

Size = tuple[int, int]


@dataclass(frozen=True)
class CellPlan:
    """One cell to measure; `source` is at the cell's size."""

    model: str
    source: ModelSource
    height: int
    width: int
    batch: int
    contenders: tuple[Contender, ...]

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What the cell is about; `Cell.key` of its result."""
        return (self.model, self.height, self.width, self.batch)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.model} {self.height}x{self.width}, batch {self.batch}"


@dataclass(frozen=True)
class GivenFile:
    """An artefact of the command line, as it is now."""

    path: Path
    metadata: ModelMetadata
    sha256: str


def sweep(text: str) -> tuple[Size, ...]:
    """The sizes of LADDER from `A:B`, both ends included; UsageError when there are none."""
    first, _, last = text.partition(":")
    (low, _), (high, _) = parse_image_size(first), parse_image_size(last or first)
    sizes = tuple((side, side) for side in LADDER if low <= side <= high)
    if not sizes:
        steps = ", ".join(map(str, LADDER))
        raise UsageError(f"sweep {text!r} holds no size.", f"a sweep takes steps out of {steps}.", "write 224:2048.")
    return sizes


def plan_models(
    models: Sequence[str],
    sizes: Sequence[Size],
    batches: Sequence[int],
    contenders: tuple[Contender, ...],
    own_size: Callable[[ModelSource], Size],
) -> list[CellPlan]:
    """Models of the zoo at each size and batch; without sizes, each at its own."""
    cells = []
    for model in models:
        source = ModelSource(model=model)
        for height, width in sizes or [own_size(source)]:
            sized = replace(source, image_size=(height, width))
            cells += [CellPlan(model, sized, height, width, batch, contenders) for batch in batches]
    return cells


def plan_files(
    files: Sequence[GivenFile], sizes: Sequence[Size], batches: Sequence[int], contenders: tuple[Contender, ...]
) -> list[CellPlan]:
    """Given files, those of one model together, at each size and batch; without sizes, each at its own.

    Raises:
        UsageError: a file does not say what model it is of.
    """
    groups: dict[ModelSource, list[GivenFile]] = {}
    for file in files:
        if file.metadata.source == ModelSource():
            raise UsageError(
                f"{file.path} does not say where its reference comes from.",
                "it was exported from a module in memory, and there is nothing to compare it with.",
                "export it with --module package.module:factory",
            )
        groups.setdefault(replace(file.metadata.source, image_size=None), []).append(file)
    names = _names([file.path for file in files])
    cells = []
    for source, group in groups.items():
        for height, width in sizes or dict.fromkeys(map(_size, group)):
            running = [file for file in group if sizes or _runs_at(file, (height, width))]
            who = contenders + tuple(_contender(file, names[file.path]) for file in running)
            sized = replace(source, image_size=(height, width))
            cells += [CellPlan(source_name(source), sized, height, width, batch, who) for batch in batches]
    return cells


def source_name(source: ModelSource) -> str:
    """A short name of the model that `source` builds."""
    if source.model or not (source.weights or source.module):
        parts = [source.model or f"digits_{source.variant or 'linear'}"]  # what export takes where nothing is named
    else:
        parts = [Path(source.weights).stem if source.weights else str(source.module).rpartition(":")[2]]
    parts += [f"hops{source.hops}"] if source.hops not in (None, 1) else []
    parts += [f"power{source.power_iterations}"] if source.power_iterations not in (None, 1) else []
    return "_".join(parts)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """For each its stem, or its whole name, or its path: the first that no other file and none of ours has."""
    forms = [form for path in paths for form in {path.stem, path.name}]
    taken = Counter([*(contender.name for contender in CONTENDERS), *forms])
    return {path: next((n for n in (path.stem, path.name) if taken[n] == 1), str(path)) for path in paths}


def _contender(file: GivenFile, name: str) -> Contender:
    about = f"{file.path.name}: {file.metadata.form}, {file.metadata.dtype}"
    runtime = "tensorrt" if is_engine(file.path) else "onnxruntime"
    return Contender(name, about, runtime, "file", file=str(file.path.resolve()), sha256=file.sha256)


def _size(file: GivenFile) -> Size:
    return file.metadata.image.height, file.metadata.image.width


def _runs_at(file: GivenFile, size: Size) -> bool:
    return file.metadata.image.multiple_of is not None or _size(file) == size
