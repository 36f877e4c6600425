"""The grid as data: which cells are measured, and who is in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infsa_deploy.bench.contenders import CONTENDERS, Contender
from infsa_deploy.config import ModelSource
from infsa_deploy.errors import UsageError
from infsa_deploy.records.model import ModelMetadata
from infsa_deploy.runtime.sessions.artefact import is_engine

Size = tuple[int, int]


@dataclass(frozen=True)
class CellPlan:
    """One cell to measure; `source` is at the cell's size, and `key` is as of the Cell that comes of it."""

    model: str
    source: ModelSource
    height: int
    width: int
    batch: int
    contenders: tuple[Contender, ...]

    @property
    def key(self) -> tuple[str, int, int, int]:
        return (self.model, self.height, self.width, self.batch)

    @property
    def title(self) -> str:
        return f"{self.model} {self.height}x{self.width}, batch {self.batch}"


@dataclass(frozen=True)
class GivenFile:
    """An artefact of the command line, as it is now."""

    path: Path
    metadata: ModelMetadata
    sha256: str

    @property
    def size(self) -> Size:
        return self.metadata.image.height, self.metadata.image.width


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
    """Given files, those of one model together, like plan_models; UsageError where one does not say what it is of."""
    groups: dict[ModelSource, list[GivenFile]] = {}
    for file in files:
        if file.metadata.source == ModelSource():
            what = f"{file.path} does not say where its reference comes from."
            why = "it was exported from a module in memory, and there is nothing to compare it with."
            raise UsageError(what, why, "export it with --module package.module:factory")
        groups.setdefault(replace(file.metadata.source, image_size=None), []).append(file)
    names = _names([file.path for file in files])
    cells = []
    for source, group in groups.items():
        for height, width in sizes or dict.fromkeys(file.size for file in group):
            running = [f for f in group if sizes or f.metadata.image.multiple_of or f.size == (height, width)]
            who = contenders + tuple(_contender(file, names[file.path]) for file in running)
            sized = replace(source, image_size=(height, width))
            cells += [CellPlan(source.name, sized, height, width, batch, who) for batch in batches]
    return cells


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """For each its stem, or its whole name, or its path: the first that no other file and none of ours has."""
    forms = [form for path in paths for form in {path.stem, path.name}]
    taken = Counter([*(contender.name for contender in CONTENDERS), *forms])
    return {path: next((n for n in (path.stem, path.name) if taken[n] == 1), str(path)) for path in paths}


def _contender(file: GivenFile, name: str) -> Contender:
    about = f"{file.path.name}: {file.metadata.form}, {file.metadata.dtype}"
    runtime = "tensorrt" if is_engine(file.path) else "onnxruntime"
    return Contender(name, about, runtime, "file", file=str(file.path.resolve()), sha256=file.sha256)
