"""Engines of the 4-layer models of width 1024, each way they can be built: `python scripts/engine_builds.py`.

Builds every combination of attention, image size, type, plugins and targets with TensorRT-RTX, which needs no GPU, and
the linear model for a 9216x9216 image. Every build proves its plugins and types, or fails. Writes
benchmarks/engine_builds.json (one row a build) and .md. Needs the plugin library: installed, or `--plugins PATH`.
Takes about 10 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models"), str(ROOT / "plugins")]

from infsa_deploy.config import EngineConfig, ModelSource  # noqa: E402
from infsa_deploy.engine.build import Listener  # noqa: E402
from infsa_deploy.engine.from_export import build  # noqa: E402
from infsa_deploy.export.pipeline import export_reference  # noqa: E402
from infsa_deploy.export.sources import Reference, load_reference  # noqa: E402
from infsa_deploy.files import written_whole  # noqa: E402
from infsa_deploy.graph.precision.int8 import quantizable, quantize  # noqa: E402
from infsa_deploy.graph.store import load_model, save_model  # noqa: E402
from infsa_deploy.runtime.pictures.folder import ZOO, calibration_batches  # noqa: E402

VARIANTS = ("linear", "pure")
SIZES = (224, 1024)
TYPES = ("fp32", "fp16", "bf16", "int8")
TARGETS = (("sm80",), ("sm80", "sm89", "sm120"))
LARGEST = 9216
CALIBRATION_IMAGES = 1  # the weights are random: the ranges have no meaning, only the graph counts


def main() -> None:
    """Export, build, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=Path, help="plugin library (default: the installed one)")
    library = parser.parse_args().plugins
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for variant, size in itertools.product(VARIANTS, SIZES):
            floating, reference = exported(variant, size, Path(folder))
            integer = quantized(floating, reference)
            for kind, plugins, targets in itertools.product(TYPES, (True, False), TARGETS):
                model = integer if kind == "int8" else floating
                rows.append({"variant": variant, "size": size} | built(model, kind, plugins, targets, library))
        model, _ = exported("linear", LARGEST, Path(folder))
        rows.append({"variant": "linear", "size": LARGEST} | built(model, "fp16", True, TARGETS[0], library))
    target = ROOT / "benchmarks" / "engine_builds.json"
    with written_whole(target) as scratch:
        scratch.write_text(json.dumps(rows, indent=1) + "\n")
    with written_whole(target.with_suffix(".md")) as scratch:
        scratch.write_text(as_markdown(rows))


def exported(variant: str, size: int, folder: Path) -> tuple[Path, Reference]:
    """The model at `size` x `size`, in float32."""
    reference = load_reference(ModelSource(model=f"infvit_{variant}_4l", image_size=(size, size)))
    path = folder / f"{variant}_{size}.onnx"
    export_reference(reference, path)
    say(f"exported {path.name}")
    return path, reference


def quantized(path: Path, reference: Reference) -> Path:
    """The same model with Q/DQ nodes at every product that can have them."""
    model, metadata = load_model(path)
    images = calibration_batches(ZOO, reference.image, CALIBRATION_IMAGES)
    target = path.with_name(f"{path.stem}_int8.onnx")
    save_model(quantize(model, quantizable(model), "static", images), replace(metadata, dtype="int8"), target)
    say(f"quantised {target.name}")
    return target


def built(model: Path, kind: str, plugins: bool, targets: tuple[str, ...], library: Path | None) -> dict[str, Any]:
    """Build one engine and tell what its sidecar says."""
    config = EngineConfig(
        backend="tensorrt-rtx",
        targets=targets,
        precision=None if kind == "fp32" else kind,  # type: ignore[arg-type]
        plugins=plugins,
        plugin_library=library if plugins else None,
    )
    engine = model.with_suffix(".engine")
    started, cpu = time.monotonic(), sum(os.times()[:4])
    record = build(model, engine, config, Listener())
    wall_s, cpu_s = time.monotonic() - started, sum(os.times()[:4]) - cpu
    say(f"built {model.stem} as {kind} for {'+'.join(targets)}, {record.plugins.mode}: {wall_s:.1f} s")
    return {
        "asked": kind,
        "targets": targets,
        "custom_ops": record.plugins.mode,
        "plugin_layers": record.plugins.layers,
        "library_in_plan": record.plugins.embedded,
        "products": record.precision.products,
        "layers_percent": record.precision.layers_percent,
        "largest_batch": (record.inputs["image"].maximum or (0,))[0],
        "engine_bytes": record.engine_bytes,
        "activation_bytes_predicted": record.activation_bytes_predicted,
        "activation_bytes": record.activation_bytes,
        "builder": f"{record.flavour} {record.flavour_version}",
        "build_s": record.build_s,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """One line a build."""
    columns = ["model", "size", "asked", "targets", "custom ops", "products", "batch", "engine, MB", "memory, GB"]
    columns += ["predicted, GB", "s", "CPU s"]
    lines = [
        "# Engines of `infvit_linear_4l` and `infvit_pure_4l`",
        "",
        f"`python scripts/engine_builds.py`, {rows[0]['builder']}, 2 cores, no GPU. Each build proved its plugin",
        "layers and the types of its products. Seconds are of the whole build, retyping included; other work ran",
        "beside it, which the CPU seconds leave out. Memory is of activations at the largest batch, as the builder",
        "reports it and as predicted before. For int8 every product that can be was quantised, calibrated on",
        f"{CALIBRATION_IMAGES} image: the weights are random, so only the graph counts.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for row in rows:
        ops = f"{sum(row['plugin_layers'].values())} plugins" if row["custom_ops"] == "plugins" else row["custom_ops"]
        cells = [
            row["variant"],
            str(row["size"]),
            row["asked"],
            " ".join(target.removeprefix("sm") for target in row["targets"]),
            ops,
            ", ".join(f"{count} {kind}" for kind, count in row["products"].items()),
            str(row["largest_batch"]),
            f"{row['engine_bytes'] / 1e6:.0f}",
            *(gigabytes(row[key]) for key in ("activation_bytes", "activation_bytes_predicted")),
            f"{row['wall_s']:.1f}",
            f"{row['cpu_s']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gigabytes(count: int | None) -> str:
    """To three digits; what is not known stays empty."""
    return "" if count is None else f"{count / 1e9:.3g}"


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
