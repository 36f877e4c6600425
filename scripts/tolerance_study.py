"""Show that the tolerance holds for correct code and that it bites: benchmarks/tolerance.md and .json.

    python scripts/tolerance_study.py [--seeds 200] [-o benchmarks/tolerance]

Correct code is each op run eagerly, as its ONNX body in ONNX Runtime and as its formula in PyTorch, and a small ViT in
its deployable form, in three types. The seeds are dealt out to processes with 1 and 2 threads and with instruction
sets that are forced on PyTorch, oneDNN and MKL; ONNX Runtime chooses its own. Wrong code is a formula with a fault, or
an operand whose values are 4 units in the last place off. A fault counts where it changes an output by more than
that: with one token, or none above zero, many do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INSTRUCTIONS = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "sse4": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
THREADS = (1, 2)
TOKENS = (1, 2, 5, 17, 65, 197, 1025, 2050)
TYPES = ("fp32", "fp16", "bf16")
RUNS = 8  # that one estimate of an operand's error averages over
D, E, RHO, EPS = 8, 24, 0.9, 1e-6
ULPS = 4


def child(seeds: Sequence[int], threads: int, setting: str, out: Path) -> None:
    """Run the study over some seeds in this process and write what was found."""
    import torch

    torch.set_num_threads(threads)
    found = Findings()
    for tokens in TOKENS:
        for op in ("NeumannAttention", "EnergyPool", "CentralityPool"):
            for dtype in TYPES:
                study_op(op, dtype, tokens, seeds, found)
    study_models(seeds, found)
    out.write_text(json.dumps({"threads": threads, "instructions": setting, "rows": found.rows()}))


class Findings:
    """Counts by what was compared: how many, how many failed, and how near the nearest came to its bound."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0, 0, 0.0])

    def add(self, key: tuple[str, ...], share: float) -> None:
        """Count a comparison whose error is `share` of its bound."""
        row = self._rows[key]
        row[0] += 1
        row[1] += not share <= 1
        row[2] = max(row[2], share) if share == share else float("inf")

    def rows(self) -> list[Any]:
        return [[list(key), *row] for key, row in self._rows.items()]


def study_op(op: str, dtype: str, tokens: int, seeds: Sequence[int], found: Findings) -> None:
    """Correct code and mutations of one op, type and number of tokens."""
    import torch

    from infsa_deploy.validation import op_truth, tolerance

    kind = getattr(torch, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[dtype])
    hops, heads = 3 if tokens in (5, 197) else 1, 1 if tokens > 1000 else 2
    runs: dict[str, list[Any]] = defaultdict(list)
    sessions: dict[Any, Any] = {}
    operand = {"NeumannAttention": 2, "EnergyPool": 1, "CentralityPool": 0}[op]
    for seed in seeds:
        inputs, attributes = drawn(op, seed, tokens, kind, hops, heads)
        wide = [tensor.double().numpy() for tensor in inputs]
        truths = op_truth.truth_of(op, wide, attributes, dtype)
        linear = op != "CentralityPool"  # in its operand: the outputs move with it as they are
        direction = truths[0].value if linear else op_truth.directions(op, wide, attributes, operand, dtype)[0]
        for name, outputs in correct(op, inputs, attributes, sessions):
            for output, truth in zip(outputs, truths, strict=False):
                found.add(
                    ("each", "correct", op, dtype, str(tokens), name), share_each(tolerance, output, truth, dtype)
                )
            runs[name].append((outputs[0].double().numpy(), truths[0], direction))
        for name, output in mutations(op, inputs, attributes) if seed in seeds[:RUNS] else ():
            if name == "ulps":
                runs["ulps"].append((output.double().numpy(), truths[0], direction))
            else:
                found.add(("each", name, op, dtype, str(tokens), ""), share_each(tolerance, output, truths[0], dtype))
    for name, many in runs.items():
        label = f"{ULPS} ulps of one operand" if name == "ulps" else "correct"
        for start in range(0, len(many) - RUNS + 1, RUNS):
            error = tolerance.operand_error(many[start : start + RUNS], dtype)
            share = abs(error.error) / error.bound if error.bound else float(error.error != 0)
            found.add(("operand", label, op, dtype, str(tokens), "" if name == "ulps" else name), share)


def share_each(tolerance: Any, output: Any, truth: Any, dtype: str) -> float:
    """The largest error over its bound; infinite where there is one that is no number."""
    import numpy as np

    error = np.abs(output.double().numpy() - truth.value) / tolerance.bound_each(truth, dtype)
    return float(error.max()) if np.isfinite(error).all() else float("inf")


def drawn(op: str, seed: int, tokens: int, kind: Any, hops: int, heads: int) -> tuple[list[Any], dict[str, Any]]:
    """Inputs that a seed gives; tokens have a mean, as after a norm with a bias, so that sums of them do not cancel."""
    import torch

    generator = torch.Generator().manual_seed(1000 * tokens + seed)

    def normal(*shape: int, mean: float = 0.0, scale: float = 1.0) -> Any:
        return ((torch.randn(*shape, generator=generator) + mean) * scale).to(kind)

    if op == "NeumannAttention":
        attributes = {"heads": heads, "rho": RHO, "hops": hops, "eps": EPS}
        return [normal(1, tokens, 3 * heads * D)], attributes
    if op == "EnergyPool":
        return [normal(1, tokens, heads * D), normal(1, tokens, E, mean=1)], {"heads": heads, "eps": EPS}
    return [normal(1, tokens, E, mean=1), normal(1, heads, E, scale=E**-0.5), normal(1, heads, mean=1)], {"eps": EPS}


def correct(
    op: str, inputs: Sequence[Any], attributes: dict[str, Any], sessions: dict[Any, Any]
) -> Iterator[tuple[str, list[Any]]]:
    """What the eager op, its body in ONNX Runtime and, the first output alone, its formula in PyTorch give.

    `sessions` keeps what was loaded.
    """
    import onnxruntime
    import torch

    from infsa_deploy.ops import OPS
    from tests.ops.single_node import body_model, fed

    chosen = next(each for each in OPS if each.contract.name == op)
    found = chosen.torch_op(*inputs, *attributes.values())
    yield "eager", [found] if isinstance(found, torch.Tensor) else list(found)
    names = [spec.name for spec in chosen.contract.inputs]
    named = dict(zip(names, inputs, strict=True))
    key = (op, inputs[0].dtype, *(tensor.shape for tensor in inputs), *attributes.values())
    if key not in sessions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        model = body_model(chosen, named, attributes).SerializeToString()
        sessions[key] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    yield "ONNX Runtime", [torch.from_numpy(array) for array in sessions[key].run(None, fed(named))]
    formula = {"NeumannAttention": neumann, "EnergyPool": energy, "CentralityPool": centrality}[op]
    yield "PyTorch", [formula([tensor.float() for tensor in inputs], attributes).to(inputs[0].dtype)]


def mutations(op: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The first output of code with a fault, computed in float32 and rounded."""
    import torch

    kind = inputs[0].dtype
    step = 1 + ULPS * torch.finfo(kind).eps
    wide = [tensor.float() for tensor in inputs]
    formula = {"NeumannAttention": neumann, "EnergyPool": energy, "CentralityPool": centrality}[op]
    last = {
        "NeumannAttention": (0, slice(-(inputs[0].shape[-1] // 3), None)),
        "EnergyPool": (1, slice(None)),
        "CentralityPool": (0, slice(None)),
    }
    operand, part = last[op]
    off = [tensor.clone() for tensor in inputs]
    off[operand][..., part] = (off[operand][..., part].float() * step).to(kind)
    yield "ulps", formula([tensor.float() for tensor in off], attributes).to(kind)
    right = formula(wide, attributes).to(kind).float()
    for name, faults in FAULTS[op].items():
        wrong = formula(wide, attributes, **faults).to(kind)
        if ((wrong.float() - right).abs() > (step - 1) * right.abs()).any():
            yield name, wrong


FAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "NeumannAttention": {
        "relu left out": {"relu": False},
        "eps read as rho": {"rho": EPS},
        "hops read as 1": {"hops": 1},
        "a row too many": {"extra": 1},
    },
    "EnergyPool": {"a row too many": {"extra": 1}, "norm not rooted": {"rooted": False}},
    "CentralityPool": {"relu left out": {"relu": False}, "padding scored relu(c)": {"padding": 1}},
}


def neumann(
    inputs: Sequence[Any],
    attributes: dict[str, Any],
    relu: bool = True,
    rho: float = RHO,
    hops: int = 0,
    extra: int = 0,
) -> Any:
    """The formula on [1, N, 3 H D], with the fault asked for; `extra` keys are the first ones again."""
    import torch

    q, k, v = inputs[0].view(1, -1, 3, attributes["heads"], D).permute(2, 0, 3, 1, 4)
    scores = q @ torch.cat([k, k[:, :, :extra]], 2).transpose(-1, -2) / D
    scores = torch.relu(scores) if relu else scores
    rows = torch.linalg.vector_norm(scores, dim=-1, keepdim=True)
    scale = rho / (torch.linalg.vector_norm(rows, dim=-2, keepdim=True) + EPS)
    y = scale * (scores @ torch.cat([v, v[:, :, :extra]], 2))
    for _ in range((hops or attributes["hops"]) - 1):
        z = v + y
        y = scale * (scores @ torch.cat([z, z[:, :, :extra]], 2))
    return y.transpose(1, 2).reshape(1, inputs[0].shape[1], -1)


def energy(inputs: Sequence[Any], attributes: dict[str, Any], extra: int = 0, rooted: bool = True) -> Any:
    """EnergyPool's first output, with the fault asked for."""
    import torch

    q, x = (torch.cat([tensor, 2 * tensor[:, :extra]], 1) for tensor in inputs)
    squares = q.view(1, -1, attributes["heads"], D).square().sum(-1) / D
    weights = (squares.sqrt() if rooted else squares).transpose(1, 2)
    return weights @ x / (weights.sum(-1, keepdim=True) + EPS)


def centrality(inputs: Sequence[Any], attributes: dict[str, Any], relu: bool = True, padding: int = 0) -> Any:
    """CentralityPool's first output, with the fault asked for; `padding` tokens of zeros are scored too."""
    import torch

    x, u, c = inputs
    x = torch.cat([x, torch.zeros(1, padding, E)], 1)
    weights = u @ x.transpose(1, 2) + c[..., None]
    weights = torch.relu(weights) if relu else weights
    return weights @ x / (weights.sum(-1, keepdim=True) + EPS)


def study_models(seeds: Sequence[int], found: Findings) -> None:
    """A ViT of 2 blocks and 17 tokens a seed, its variant in turn: the deployable form, and wrong ones."""
    import numpy as np
    import torch
    from infsa_models.vit import ViT, ViTConfig

    from infsa_deploy.validation import tolerance
    from infsa_deploy.validation.reference import DisturbedRun, ReferenceRun, rounded_tensors

    for seed in seeds:
        torch.manual_seed(seed)
        variant = ("linear", "pure", "softmax")[seed % 3]
        sizes = {"image_size": (32, 32), "patch_size": 8, "in_channels": 3, "embed_dim": E, "depth": 2}
        model = ViT(ViTConfig(variant=variant, num_heads=3, mlp_dim=48, num_classes=10, **sizes)).eval()
        feeds = {"image": torch.randn(64, 3, 32, 32).numpy()}
        exact = ReferenceRun(model, "fp64")(feeds)["logits"]
        for dtype in TYPES:
            narrow = ReferenceRun(model, dtype)(feeds)["logits"]

            def on_edge(
                images: Any,
                errors: Any,
                model: Any = model,
                pixels: Any = feeds["image"],
                dtype: str = dtype,
                exact: Any = exact,
            ) -> Any:
                largest, chosen = np.zeros(len(images)), {"image": pixels[images]}
                for draw in range(8):
                    off = DisturbedRun(model, dtype, draw)(chosen)["logits"] - exact[images]
                    largest = np.maximum(largest, np.sqrt((off**2).mean(1)))
                return largest >= errors / 2

            for name, output in model_outputs(model, feeds, dtype, seed in seeds[:RUNS]):
                judged = tolerance.judge_model(output, narrow, exact, dtype, rounded_tensors(model), on_edge)
                share = max(judged.rms / judged.rms_bound, judged.largest / judged.largest_bound)
                label = "correct" if name in ("deployable", "native") else name
                found.add(("model", label, variant, dtype, "17", name if label == "correct" else ""), share)
                if label == "correct":
                    found.add(("edges", label, variant, dtype, "17", name), judged.edges / 64)
            plausible = tolerance.plausible_error(dtype, rounded_tensors(model))
            yardstick = np.sqrt(np.mean((narrow - exact) ** 2) / np.mean(exact**2))
            found.add(("yardstick", "correct", variant, dtype, "17", ""), float(yardstick / plausible))


def model_outputs(model: Any, feeds: dict[str, Any], dtype: str, wrong_too: bool) -> Iterator[tuple[str, Any]]:
    """Logits of the deployable form, with rounded modules and in the type throughout, and of wrong models."""
    import copy

    import torch

    from infsa_deploy.export.rewrite.deployable import to_deployable
    from infsa_deploy.validation.reference import ReferenceRun

    deployable = to_deployable(model)
    right = ReferenceRun(deployable, dtype)(feeds)["logits"]
    yield "deployable", right
    kind = getattr(torch, {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[dtype])
    with torch.no_grad():
        native = copy.deepcopy(deployable).to(kind)(torch.from_numpy(feeds["image"]).to(kind))
    yield "native", native.double().numpy()
    if not wrong_too:
        return
    broken = right.copy()
    broken[0] = right[1]
    yield "one image has another's logits", broken
    for name, change in MODEL_FAULTS.items():
        wrong = copy.deepcopy(deployable)
        change(wrong)
        yield name, ReferenceRun(wrong, dtype)(feeds)["logits"]


def _without_position(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "pos" in name:
            parameter.data.zero_()


def _eps(model: Any) -> None:
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-2


def _head_bias(model: Any) -> None:
    model.head.bias.data += 0.05


MODEL_FAULTS: dict[str, Callable[[Any], None]] = {
    "no position embedding": _without_position,
    "eps of the norms 1e-2": _eps,
    "a bias off by 0.05": _head_bias,
}


def run_children(seeds: int, folder: Path) -> list[dict[str, Any]]:
    """Deal the seeds out in eights to processes, one after the other, and return what each wrote."""
    settings = [(name, threads) for name in INSTRUCTIONS for threads in THREADS]
    groups = [list(range(start, min(start + RUNS, seeds))) for start in range(0, seeds, RUNS)]
    results = []
    for index, (name, threads) in enumerate(settings):
        mine = [seed for group in groups[index :: len(settings)] for seed in group]
        out = folder / f"{name}_{threads}.json"
        environment = os.environ | INSTRUCTIONS[name] | {"OMP_NUM_THREADS": str(threads)}
        arguments = ["--child", json.dumps([mine, threads, name, str(out)])]
        print(f"{name}, {threads} threads: {len(mine)} seeds", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, __file__, *arguments], env=environment, check=True)
        results.append(json.loads(out.read_text()))
    return results


def merged(
    results: Sequence[dict[str, Any]], by: Callable[[list[str], dict[str, Any]], tuple[str, ...] | None]
) -> dict:
    """Counts added up and nearest shares kept, by what `by` makes of a row's key and its process."""
    total: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for result in results:
        for key, count, failed, nearest in result["rows"]:
            group = by(key, result)
            if group is not None:
                total[group][0] += count
                total[group][1] += failed
                total[group][2] = max(total[group][2], nearest)
    return total


def table(headings: Sequence[str], rows: dict[tuple[str, ...], list[float]], wrong: bool = False) -> list[str]:
    """Markdown; of wrong code what was caught, of correct code what failed and the nearest to its bound."""
    last = ["caught"] if wrong else ["failed", "nearest to its bound"]
    lines = ["| " + " | ".join([*headings, "comparisons", *last]) + " |"]
    lines.append("|" + "---|" * (len(headings) + 1 + len(last)))
    for key, (count, failed, nearest) in sorted(rows.items()):
        ending = [f"{failed / count:.1%}"] if wrong else [str(failed), f"{nearest:.2f}"]
        lines.append("| " + " | ".join([*key, str(count), *ending]) + " |")
    return lines


def report(results: Sequence[dict[str, Any]], seeds: int) -> str:
    """benchmarks/tolerance.md."""
    import torch

    kinds = ("each", "operand", "model")
    names = {"each": "each output", "operand": "an operand, 8 runs", "model": "64 images"}

    def correct_by(*parts: Callable[[list[str], dict[str, Any]], str]) -> dict:
        def by(key: list[str], result: dict[str, Any]) -> tuple[str, ...] | None:
            if key[1] != "correct" or key[0] not in kinds:
                return None
            return (names[key[0]], *(part(key, result) for part in parts))

        return merged(results, by)

    everything = correct_by(lambda key, _: key[2], lambda key, _: key[3])
    count = int(sum(row[0] for row in everything.values()))
    failed = int(sum(row[1] for row in everything.values()))
    places = correct_by(lambda _, result: f"{result['instructions']}, {result['threads']}")
    tokens = correct_by(lambda key, _: key[4].rjust(4))
    yardsticks = merged(results, lambda key, _: (key[2], key[3]) if key[0] == "yardstick" else None)
    edges = merged(results, lambda key, _: (key[2], key[3]) if key[0] == "edges" else None)
    wrong = merged(
        results, lambda key, _: (key[1], key[2], key[3]) if key[0] in kinds and key[1] != "correct" else None
    )
    ulps = merged(results, lambda key, _: (key[2], key[3], key[4].rjust(4)) if key[1].startswith(str(ULPS)) else None)
    missed = {key: row for key, row in ulps.items() if row[1] < row[0]}
    lines = [
        "# The tolerance, tried",
        "",
        f"`python scripts/tolerance_study.py --seeds {seeds}`, PyTorch {torch.__version__}, {platform.machine()}.",
        "The rule and its derivation: `infsa_deploy/validation/tolerance.py`.",
        "",
        f"Correct code: {count} comparisons, {failed} failed. A share of 1.00 is the bound.",
        "",
        *table(["compared", "of", "type"], everything),
        "",
        "By instruction set and number of threads:",
        "",
        *table(["compared", "forced, threads"], places),
        "",
        "By number of tokens:",
        "",
        *table(["compared", "tokens"], tokens),
        "",
        "Errors of yardsticks as shares of what is plausible:",
        "",
        *table(["model", "type"], yardsticks),
        "",
        "Images of 64 that lie on an edge of the model and were left out (the last column: the largest share of them):",
        "",
        *table(["model", "type"], edges),
        "",
        "Wrong code:",
        "",
        *table(["fault", "in", "type"], wrong, wrong=True),
        "",
        f"{ULPS} units in the last place, where not all were caught:"
        if missed
        else f"{ULPS} units in the last place: all caught.",
        "",
        *(table(["op", "type", "tokens"], missed, wrong=True) if missed else []),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "tolerance")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "models"), str(ROOT / "plugins")]
    if options.child:
        seeds, threads, name, out = json.loads(options.child)
        child(seeds, threads, name, Path(out))
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        results = run_children(options.seeds, Path(folder))
    options.output.with_suffix(".json").write_text(json.dumps(results, indent=0) + "\n")
    options.output.with_suffix(".md").write_text(report(results, options.seeds))


if __name__ == "__main__":
    main()
