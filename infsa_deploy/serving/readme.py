"""The README.md that lies beside a packaged model: how to start a server on it, and what to send."""

from __future__ import annotations

from infsa_deploy.runtime.sessions.protocol import TensorInfo
from infsa_deploy.serving.servable import Servable
from infsa_deploy.version import __version__

LIBRARY = "libinfsa_plugins.so"
EXTRAS = {"tensorrt": "gpu", "tensorrt-rtx": "rtx"}

TEXT = """# {name}, version {version}

Packaged from `{file}` by infsa-deploy {tool}. Backend: {backend}. To start it, with the repository at /models:

    tritonserver --model-repository=/models{options}

{needs}

| | name | type | shape |
|---|---|---|---|
{tensors}

Images are preprocessed as `infsa_deploy.load(...).preprocess` does: scaled to cover {height}x{width}, cropped in the
centre, taken to [0, 1], less {mean}, over {std}. `labels.txt` names the classes in the order of the logits.
`config.pbtxt` may be tuned by hand: a further version keeps it.
"""


def text(name: str, version: int, model: Servable, backend: str) -> str:
    """The text for a model as it is packaged."""
    image = model.metadata.image
    rows = [_row("input", model.input), *(_row("output", info) for info in model.outputs)]
    return TEXT.format(
        name=name,
        version=version,
        file=model.path.name,
        tool=__version__,
        backend=backend,
        options=_options(name, version, model, backend),
        needs=_needs(model, backend),
        tensors="\n".join(rows),
        height=image.height,
        width=image.width,
        mean=list(image.mean),
        std=list(image.std),
    )


def _row(kind: str, info: TensorInfo) -> str:
    return f"| {kind} | {info.name} | {info.dtype} | {list(info.shape)} |"


def _options(name: str, version: int, model: Servable, backend: str) -> str:
    if backend != "tensorrt" or model.record is None:
        return ""
    options = [f"plugins=/models/{name}/{version}/{LIBRARY}"] * bool(model.library)
    if model.record.plugins.embedded or model.record.options.get("version_compatible"):
        options.append("version-compatible=true")
    return "".join(f" \\\n        --backend-config=tensorrt,{option}" for option in options)


def _needs(model: Servable, backend: str) -> str:
    if backend == "python":
        extra = EXTRAS[model.record.flavour] if model.record else "cpu"
        return f"The Python that the backend runs needs `pip install 'infsa-deploy[{extra}]'`; no PyTorch."
    if model.record is None:
        return "The custom ops are functions within the file: the onnxruntime backend needs nothing of ours."
    record = model.record
    needs = f"The server's TensorRT has to be {record.flavour_version}, its GPU {', '.join(record.targets)}."
    if record.plugins.embedded:
        return f"{needs} The plan holds its plugin library; the option lets the server load it."
    if model.library:
        return f"{needs} The plugin library lies in the version's folder; a server loads one, which versions share."
    return needs
