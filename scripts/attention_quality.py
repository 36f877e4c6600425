"""Accuracy and attention quality of the digits models, eager and exported: `python scripts/attention_quality.py`.

Writes benchmarks/attention_quality.json (every number), .md (tables) and .png (removal curves). Takes about
15 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

from infsa_deploy.config import ExportConfig, ModelSource  # noqa: E402
from infsa_deploy.evaluate.agreement import map_cosines  # noqa: E402
from infsa_deploy.evaluate.datasets import DataSource, Sample, open_dataset  # noqa: E402
from infsa_deploy.evaluate.figures import draw_evaluation  # noqa: E402
from infsa_deploy.evaluate.journal import Journal  # noqa: E402
from infsa_deploy.evaluate.model import Classifier, open_classifier  # noqa: E402
from infsa_deploy.evaluate.results import Estimate, EvaluationReport, ModelResult  # noqa: E402
from infsa_deploy.evaluate.run import Plan, evaluate_models  # noqa: E402
from infsa_deploy.export.pipeline import export_reference  # noqa: E402
from infsa_deploy.export.sources import load_reference  # noqa: E402
from infsa_deploy.files import written_whole  # noqa: E402
from infsa_deploy.runtime.pictures.folder import calibration_batches  # noqa: E402

VARIANTS = ("softmax", "pure", "linear")
FORMS: dict[str, dict[str, Any]] = {"fp32": {}, "fp16": {"dtype": "fp16"}, "int8": {"int8": "dynamic"}}
LAYERS = ("0", "1", "2", "3", "mean")
PAPER = {  # arXiv:2603.00175, ImageNet-1K, percent
    "MoRF-AOC": {"softmax": 42.6, "pure": 71.7, "linear": 76.0},
    "ROC-AUC": {"softmax": 53.8, "pure": 77.3, "linear": 75.9},
    "PR-AUC": {"softmax": 56.2, "pure": 72.4, "linear": 76.1},
}


def main() -> None:
    """Export, evaluate, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000, help="test images")
    parser.add_argument("--removal-images", type=int, default=100, help="those that patches are removed from")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {variant: opened(variant, Path(folder), args.threads) for variant in VARIANTS}
        samples = open_dataset(DataSource("zoo", limit=args.images), models["linear"]["fp32"].classes)
        found = measured(models, samples, args.removal_images)
    target = ROOT / "benchmarks" / "attention_quality.json"
    target.parent.mkdir(exist_ok=True)
    by_variant = found["variants"]
    plain = {
        "images": args.images,
        "removal_images": args.removal_images,
        "variants": dataclasses.asdict(by_variant),
        "forms": {variant: dataclasses.asdict(report) for variant, report in found["forms"].items()},
        "layers": {layer: dataclasses.asdict(report) for layer, report in found["layers"].items()},
        "map_cosines": found["map_cosines"],
        "paper_percent": PAPER,
    }
    with written_whole(target) as scratch:
        scratch.write_text(json.dumps(plain, indent=1) + "\n")
    with written_whole(target.with_suffix(".md")) as scratch:
        scratch.write_text(as_markdown(found, args.images, args.removal_images))
    with tempfile.TemporaryDirectory() as folder:
        *_, removal = draw_evaluation(by_variant, Path(folder))
        with written_whole(target.with_suffix(".png")) as scratch:
            scratch.write_bytes(removal.read_bytes())


def opened(variant: str, folder: Path, threads: int | None) -> dict[str, Classifier]:
    """The model run eagerly, and exported in each of FORMS, under short names."""
    reference = load_reference(ModelSource(model=f"digits_{variant}"))
    models = {"eager": open_classifier(f"digits_{variant}", threads=threads)}
    for form, options in FORMS.items():
        path = folder / f"{variant}_{form}.onnx"
        images = calibration_batches("zoo", reference.image) if "int8" in options else ()
        export_reference(reference, path, ExportConfig(attention_maps=True, **options), calibration=images)
        models[form] = open_classifier(str(path), threads=threads)
    return {form: dataclasses.replace(model, name=f"{variant} {form}") for form, model in models.items()}


def measured(models: dict[str, dict[str, Classifier]], samples: list[Sample], removal_images: int) -> dict[str, Any]:
    """Each variant's forms against eager, the variants against softmax, and each layer's maps of the fp32 export."""
    journals: dict[str, Journal] = {}

    def evaluated(classifiers: list[Classifier], layer: str) -> EvaluationReport:
        def journal(task: dict[str, Any]) -> Journal:
            return journals.setdefault(json.dumps(task), Journal(None, task))  # no model is run twice for one task

        plan = Plan(attention=True, layer=layer, removal_images=removal_images)
        return evaluate_models(classifiers, samples, "zoo", plan, journals=[journal] * len(classifiers), progress=tell)

    forms = {variant: evaluated(list(by_form.values()), "mean") for variant, by_form in models.items()}
    fp32 = [models[variant]["fp32"] for variant in VARIANTS]
    layers = {layer: evaluated(fp32, layer) for layer in LAYERS}
    cosines = {
        variant: {form: spread(map_cosines(by_form["eager"], by_form[form], samples)) for form in FORMS}
        for variant, by_form in models.items()
    }
    return {"forms": forms, "layers": layers, "variants": layers["mean"], "map_cosines": cosines}


def spread(cosines: Any) -> dict[str, float]:
    """Smallest, 1st percentile and mean of all maps' cosines."""
    return {
        "smallest": float(cosines.min()),
        "percentile_1": float(np.percentile(cosines, 1)),
        "mean": float(cosines.mean()),
    }


def tell(phase: str) -> None:
    """Say on stderr what is being done."""
    print(phase, file=sys.stderr)


def as_markdown(found: dict[str, Any], images: int, removal_images: int) -> str:
    """The tables, and the order of the variants beside the paper's."""
    forms, layers, cosines = found["forms"], found["layers"], found["map_cosines"]
    parts = [
        "# Accuracy and attention quality of the digits models",
        f"`python scripts/attention_quality.py`: {images} test images of the digits zoo; patches are removed from "
        f"{removal_images} of them. Intervals are of 95 %. Maps: mean over heads, and over layers unless a layer is "
        "named. One seed a variant: differences between variants are between three models, not three methods.",
        "## Variants, ONNX fp32",
        quality_table(found["variants"]),
        "![removal curves](attention_quality.png)",
        "## Beside the paper",
        order_table(layers),
        "The paper's numbers are for ImageNet-1K and other models, and its layer and removal protocol are not ours: "
        "only the orders can be compared.",
        "## Forms of each variant, against eager",
        *(forms_table(variant, report, cosines[variant]) for variant, report in forms.items()),
        "## Layer by layer, ONNX fp32",
        layer_table(layers),
    ]
    return "\n\n".join(parts) + "\n"


def quality_table(report: EvaluationReport) -> str:
    """Accuracy and attention quality, a column a model; accuracies against the first by McNemar's test."""
    results = report.models
    names = [result.variant for result in results]
    differences = [f"{percent(c.difference, '+')}, p = {c.p_value:.2g}" for c in report.comparisons]
    rows = {
        "top-1": [percent(result.accuracy.top1) for result in results],
        f"top-1 against {names[0]}": ["", *differences],
        "ECE": [f"{result.accuracy.ece:.3f}" for result in results],
    }
    for index, baseline in enumerate(("blur", "mean")):
        curves = [result.attention.faithfulness[index] for result in results]
        rows[f"MoRF-AOC, {baseline}"] = [percent(c.morf_aoc) for c in curves]
        rows[f"LeRF-AUC, {baseline}"] = [percent(c.lerf_auc) for c in curves]
    rows["ROC-AUC"] = [percent(result.attention.roc_auc) for result in results]
    rows["PR-AUC"] = [percent(result.attention.pr_auc) for result in results]
    rows["PR-AUC of a map that knows nothing"] = [f"{100 * result.attention.pr_chance:.1f} %" for result in results]
    rows["pointing game"] = [percent(result.attention.pointing) for result in results]
    return table(["", *names], [[name, *cells] for name, cells in rows.items()])


def order_table(layers: dict[str, EvaluationReport]) -> str:
    """Which variant is first by each score, in the paper, by the mean over layers and by the last layer."""
    rows = []
    for score, values in PAPER.items():
        row = [score, ordered(values)]
        for layer in ("mean", LAYERS[-2]):
            ours = {result.variant: 100 * scored(result, score) for result in layers[layer].models}
            row.append(ordered(ours))
        rows.append(row)
    return table(["score", "paper, %", "here, mean over layers, %", "here, last layer, %"], rows)


def scored(result: ModelResult, score: str) -> float:
    """The mean of one of the paper's three scores; MoRF-AOC with blur."""
    quality = result.attention
    estimates = {
        "MoRF-AOC": quality.faithfulness[0].morf_aoc,
        "ROC-AUC": quality.roc_auc,
        "PR-AUC": quality.pr_auc,
    }
    return estimates[score].mean


def ordered(values: dict[str, float]) -> str:
    """`linear 76.0 > pure 71.7 > softmax 42.6`."""
    return " > ".join(f"{name} {value:.1f}" for name, value in sorted(values.items(), key=lambda item: -item[1]))


def forms_table(variant: str, report: EvaluationReport, cosines: dict[str, dict[str, float]]) -> str:
    """One variant: each form's scores, its disagreement with eager and the similarity of its maps."""
    compared = {comparison.model: comparison for comparison in report.comparisons}
    rows = []
    for result in report.models:
        form, quality = result.model.split()[1], result.attention
        against, similar = compared.get(result.model), cosines.get(form)
        difference = "" if against is None else f"{percent(against.difference, '+')}, p = {against.p_value:.2g}"
        rows.append(
            [
                form,
                percent(result.accuracy.top1),
                difference,
                percent(quality.faithfulness[0].morf_aoc),
                percent(quality.roc_auc),
                percent(quality.pr_auc),
                "" if similar is None else f"{similar['smallest']:.6f} / {similar['mean']:.6f}",
            ]
        )
    heading = [
        variant, "top-1", "against eager (McNemar)", "MoRF-AOC, blur", "ROC-AUC", "PR-AUC", "map cosine, least / mean"
    ]  # fmt: skip
    return table(heading, rows)


def layer_table(layers: dict[str, EvaluationReport]) -> str:
    """Scores of each layer's maps."""
    rows = []
    for layer, report in layers.items():
        for result in report.models:
            quality = result.attention
            scores = (quality.faithfulness[0].morf_aoc, quality.roc_auc, quality.pr_auc, quality.pointing)
            rows.append([layer, result.variant, *(percent(score) for score in scores)])
    return table(["layer", "variant", "MoRF-AOC, blur", "ROC-AUC", "PR-AUC", "pointing game"], rows)


def table(heading: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def percent(estimate: Estimate, sign: str = "") -> str:
    """`98.7 % (97.8 to 99.2)`."""
    low, high = (f"{100 * bound:{sign}.1f}" for bound in (estimate.low, estimate.high))
    return f"{100 * estimate.mean:{sign}.1f} % ({low} to {high})"


if __name__ == "__main__":
    main()
