"""A model file to a Triton model repository, as a new version where the repository has the model already."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from infsa_deploy.config import ServingConfig
from infsa_deploy.errors import ModelError, UsageError
from infsa_deploy.files import check_apart
from infsa_deploy.serving import readme
from infsa_deploy.serving.repository import Repository, next_version
from infsa_deploy.serving.servable import Servable, model_name, read_servable
from infsa_deploy.serving.triton_config import (
    FILES,
    LABELS,
    SIGNATURE,
    decode_config,
    differing,
    ensemble_config,
    model_config,
    read_config,
    to_text,
)

README = "README.md"


@dataclass(frozen=True)
class PackageReport:
    """What was put into a repository.

    Attributes:
        path: folder of the new version.
        models: names of the models that were added or got a new version, with that version.
        kept: fields of `config.pbtxt` that are not as these options would have them, because the file was kept.
    """

    path: str
    name: str
    version: int
    backend: str
    models: dict[str, int]
    kept: tuple[str, ...]


def package(path: Path, repository: Path, config: ServingConfig) -> PackageReport:
    """Put the model file `path` into the Triton model repository `repository`, which is made where it is missing.

    A `config.pbtxt` that is there is kept, with what a person changed in it, but must describe the same inputs,
    outputs and backend. Everything is written aside and renamed into place, the version last.

    Raises:
        ModelError: the file is missing, damaged or not ours.
        UsageError: a backend that cannot run the file, a batch it does not take, or another model under its name.
        HostError: a package or the plugin library is missing, or the repository cannot be written.
    """
    model = read_servable(path, config.plugins)
    backend = _backend(model, config)
    name = model_name(path, config.name)
    _check_batch(model, backend, config)
    message = model_config(name, model, backend, config)
    labels = "".join(f"{label}\n" for label in model.metadata.classes)
    check_apart([repository / name / README], _files(model, backend).values())
    kept = _check_same(repository / name, message, labels)
    version = next_version(repository / name)
    models = {name: version}
    with Repository(repository) as target:
        if not kept.exists:
            target.write(name, "config.pbtxt", to_text(message))
            target.write(name, LABELS, labels)
        target.write(name, README, readme.text(name, version, model, backend))
        for beside, source in _files(model, backend).items():
            target.copy(name, f"{version}/{beside}", source)
        if backend == "python":
            target.write(name, f"{version}/model.py", _backend_source("classify"))
        if config.ensemble or (repository / f"{name}_decode").is_dir():
            models |= _add_ensemble(target, name, model, message, config)
    return PackageReport(str(repository / name / str(version)), name, version, backend, models, kept.differing)


@dataclass(frozen=True)
class _Kept:
    exists: bool
    differing: tuple[str, ...] = ()


def _backend(model: Servable, config: ServingConfig) -> str:
    flavour = model.record.flavour if model.record else None
    if config.backend == "python":
        return "python"
    if flavour is None:
        return "onnxruntime"
    if flavour != "tensorrt":
        raise UsageError(
            f"Triton's tensorrt backend does not load {model.path}.",
            f"it is a plan of {flavour}, which is another format than TensorRT's.",
            "give --backend python, or build it with build-engine --backend tensorrt.",
        )
    return "tensorrt"


def _check_batch(model: Servable, backend: str, config: ServingConfig) -> None:
    most = config.max_batch
    if most and model.largest and most > model.largest:
        why = f"it takes {model.largest} at once."
        raise UsageError(f"{model.path} cannot be given {most} images.", why, f"give --max-batch {model.largest}.")
    fixed = isinstance(model.input.shape[0], int)
    if model.smallest > 1 and not fixed:
        why = f"it was built for {model.smallest} at least, and a request may hold one."
        fix = "build it again without --min-shapes."
        raise UsageError(f"{model.path} takes no fewer than {model.smallest} images.", why, fix)
    if backend != "python" and fixed:
        raise UsageError(
            f"{model.path} takes {model.smallest} images a run, no fewer.",
            f"Triton's {backend} backend does not fill up a batch.",
            "give --backend python, which does, or a model with a free batch axis.",
        )


def _check_same(folder: Path, message: Any, labels: str) -> _Kept:
    """Whether the folder has a configuration, which must then describe the same model."""
    if not folder.exists():
        return _Kept(False)
    present = read_config(folder / "config.pbtxt")
    other = differing(present, message)
    broken = [field for field in other if field in SIGNATURE]
    known = folder / LABELS
    if known.is_file() and known.read_text(encoding="utf-8") != labels:
        broken.append("labels")
    if broken:
        raise UsageError(
            f"{folder} holds another model.",
            f"its versions share one configuration, and this one differs in {', '.join(broken)}.",
            "give the same options as before, or another --name.",
        )
    return _Kept(True, tuple(other))


def _files(model: Servable, backend: str) -> dict[str, Path]:
    """What a version's folder holds, by name; external weights keep theirs, which the model file refers to."""
    own = "model.onnx" if model.record is None else "model.engine" if backend == "python" else FILES[backend]
    found = {own: model.path}
    if model.sidecar:
        found[f"{own}.json"] = model.sidecar
    if model.weights:
        found[model.weights.name] = model.weights
    if model.library:
        found[readme.LIBRARY] = model.library
    return found


def _add_ensemble(
    target: Repository, name: str, model: Servable, message: Any, config: ServingConfig
) -> dict[str, int]:
    """The decoding stage, anew where the model's input became another, and the ensemble, which is made once."""
    decode, ensemble = f"{name}_decode", f"{name}_image"
    image = json.dumps(asdict(model.metadata.image), indent=2)
    stage = decode_config(decode, model, config)
    version = next_version(target.root / decode)
    added = {}
    if _latest_image(target.root / decode, version - 1) != image:
        added[decode] = version
        if not (target.root / decode).exists():
            target.write(decode, "config.pbtxt", to_text(stage))
        target.write(decode, f"{version}/image.json", image)
        target.write(decode, f"{version}/model.py", _backend_source("decode"))
    if not (target.root / ensemble).exists():
        added[ensemble] = 1
        target.write(ensemble, "config.pbtxt", to_text(ensemble_config(ensemble, stage, message)))
        target.write(ensemble, "1/.keep", "")  # Triton wants the folder, and stores without folders would lose it
    return added


def _latest_image(folder: Path, version: int) -> str | None:
    path = folder / str(version) / "image.json"
    if version and not path.is_file():
        raise ModelError(f"{folder} is no decoding stage of ours.", f"{path} is missing.", "give another --name.")
    return path.read_text(encoding="utf-8") if version else None


def _backend_source(name: str) -> str:
    return (resources.files("infsa_deploy.serving.backends") / f"{name}.py").read_text(encoding="utf-8")
