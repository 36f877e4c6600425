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
        runtime: what runs it, as in `worker.open_session`.
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


PLAIN, OURS, FP16 = ExportConfig(fold=False), ExportConfig(), ExportConfig(dtype="fp16")
INT8 = ExportConfig(int8="dynamic")
OURS_ORT, PURE = "infsa-deploy on ONNX Runtime", "pure InfSA of the same size, infsa-deploy on ONNX Runtime"

CONTENDERS = (
    Contender("eager", "the reference formula in PyTorch", "eager", group="always"),
    Contender("softmax", "softmax ViT of the same size in PyTorch", "eager", program="softmax", group="always"),
    Contender("compile", "torch.compile of the reference", "compile"),
    Contender("ort-reference", "plain export on ONNX Runtime", "onnxruntime", export=PLAIN),
    Contender("openvino-fp32", "plain export on OpenVINO", "openvino", export=PLAIN),
    Contender("openvino-bf16", "plain export on OpenVINO in bf16", "openvino", "bf16", export=PLAIN),
    Contender("ours-fp32", OURS_ORT, "onnxruntime", export=OURS),
    Contender("ours-int8", f"{OURS_ORT} in int8", "onnxruntime", "int8", export=INT8),
    Contender("ours-fp16", f"{OURS_ORT} in fp16", "onnxruntime", "fp16", export=FP16, group="named"),
    Contender("ours-openvino-fp32", "infsa-deploy on OpenVINO", "openvino", export=OURS, group="named"),
    Contender("ours-openvino-bf16", "infsa-deploy on OpenVINO in bf16", "openvino", "bf16", export=OURS, group="named"),
    Contender("pure-fp32", PURE, "onnxruntime", program="pure", export=OURS, group="named"),
    Contender("linformer", "Linformer of the same size", "eager", program="linformer", group="baseline"),
    Contender("performer", "Performer of the same size", "eager", program="performer", group="baseline"),
)


def choose(names: Sequence[str], *, baselines: bool, files: bool) -> tuple[Contender, ...]:
    """Choose the contenders asked for, in the order of the list; UsageError where a name is unknown.

    Without names, the default ones run; or, where files are given to be compared, only those that always do.
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
