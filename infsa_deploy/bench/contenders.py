"""Who is measured: one literal list, the reference first."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infsa_deploy.config import Dtype, ExportConfig
from infsa_deploy.errors import UsageError

Program = Literal["reference", "softmax", "pure", "linformer", "performer"]


@dataclass(frozen=True)
class Contender:
    """One way to run a model.

    Attributes:
        name: what the tables call it.
        about: one line for readers of the report.
        runtime: a key of `sessions.OPENERS`.
        dtype: type the products are computed in.
        program: whose formula it is; other programs than `reference` are other models of the same size.
        export: the file it runs is exported so; None for what runs in PyTorch, or for a given file.
        group: `always`, `default`, `named` (only when asked for) or `baseline` (with --baselines).
        file, sha256: the artefact, for a file given on the command line, and its hash.
    """

    name: str
    about: str
    runtime: str
    dtype: Dtype | Literal["int8", "file"] = "fp32"
    program: Program = "reference"
    export: ExportConfig | None = None
    group: Literal["always", "default", "named", "baseline"] = "default"
    file: str | None = None
    sha256: str | None = None


AS_IT_STANDS = ExportConfig(fold=False)

CONTENDERS = (
    Contender("eager", "the reference formula in PyTorch", "eager", group="always"),
    Contender("softmax", "softmax ViT of the same size in PyTorch", "eager", program="softmax", group="always"),
    Contender("compile", "torch.compile of the reference", "compile"),
    Contender("ort-reference", "plain export on ONNX Runtime", "onnxruntime", export=AS_IT_STANDS),
    Contender("openvino-fp32", "plain export on OpenVINO", "openvino", export=AS_IT_STANDS),
    Contender("openvino-bf16", "plain export on OpenVINO in bf16", "openvino", "bf16", export=AS_IT_STANDS),
    Contender("ours-fp32", "infsa-deploy on ONNX Runtime", "onnxruntime", export=ExportConfig()),
    Contender(
        "ours-int8", "infsa-deploy in int8 on ONNX Runtime", "onnxruntime", "int8", export=ExportConfig(int8="dynamic")
    ),
    Contender(
        "ours-fp16",
        "infsa-deploy in fp16 on ONNX Runtime",
        "onnxruntime",
        "fp16",
        export=ExportConfig(dtype="fp16"),
        group="named",
    ),
    Contender("ours-openvino-fp32", "infsa-deploy on OpenVINO", "openvino", export=ExportConfig(), group="named"),
    Contender("ours-openvino-bf16", "the same in bf16", "openvino", "bf16", export=ExportConfig(), group="named"),
    Contender(
        "pure-fp32",
        "pure InfSA of the same size, infsa-deploy on ONNX Runtime",
        "onnxruntime",
        program="pure",
        export=ExportConfig(),
        group="named",
    ),
    Contender("linformer", "Linformer of the same size", "eager", program="linformer", group="baseline"),
    Contender("performer", "Performer of the same size", "eager", program="performer", group="baseline"),
)
REFERENCE = CONTENDERS[0]


def choose(names: Sequence[str], *, baselines: bool, files: bool) -> tuple[Contender, ...]:
    """The contenders asked for, in the order of the list; `always` ones among them.

    Without names, the default ones run; or, where files are given to be compared, only those that always do.

    Raises:
        UsageError: a name is unknown.
    """
    known = [contender.name for contender in CONTENDERS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "choose one of them."
            raise UsageError(f"contender {name!r} is unknown.", f"there are {', '.join(known)}.", hint)
    groups = {"always"} | ({"baseline"} if baselines else set())
    if not names and not files:
        groups |= {"default"}
    return tuple(c for c in CONTENDERS if c.group in groups or c.name in names)
