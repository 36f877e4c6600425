"""What scripts/bulk_ray.py makes of lost workers, a lost node and Ctrl-C, on a Ray cluster of two nodes on one machine.

    python -m tests.scripts.bulk_kill [--images N] [-o benchmarks/bulk_ray_kill.json]

The parts that a disturbed job leaves have to be, byte for byte, those of one process that nothing disturbs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from infsa_models import digits
from PIL import Image

from infsa_deploy.bulk.job import PARTS, open_job
from infsa_deploy.bulk.predict import PartWorker
from infsa_deploy.config import ExportConfig, ModelSource
from infsa_deploy.export.pipeline import export_reference
from infsa_deploy.export.sources import load_reference
from infsa_deploy.files import written_whole

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bulk_ray.py"
DONE = re.compile(r"part (\d+): \d+ images, by [^:]+:(\d+)")
PIPE_BYTES = 4096  # some 130 lines of a part done, at most
UNREADABLE = {"damaged.png": b"\x89PNG, but no more", "folder/empty.jpg": b""}

Act = Callable[[int, int, subprocess.Popen], None]  # parts done, process that did the last, the script


@contextmanager
def two_nodes() -> Iterator[tuple[Any, Any]]:
    """A Ray cluster of two nodes with a CPU each, and the node that is not its head."""
    from ray.cluster_utils import Cluster

    sizes = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=sizes)
    try:
        yield cluster, cluster.add_node(**sizes)
    finally:
        cluster.shutdown()


def write_model(path: Path) -> None:
    """The trained linear digits model."""
    export_reference(load_reference(ModelSource(model="digits_linear")), path, ExportConfig())


def write_images(folder: Path, count: int) -> None:
    """So many digits images, and two files that are none."""
    for index, image in enumerate(digits.test_set(count).images):
        path = folder / f"{index % 10}" / f"{index:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    for name, content in UNREADABLE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def start(model: Path, images: Path, output: Path, *options: str) -> subprocess.Popen:
    """The script, its output in pipes of so few lines that it cannot run far ahead of a reader without buffer."""
    command = [sys.executable, str(SCRIPT), str(model), str(images), "-o", str(output), "--json", *options]
    return subprocess.Popen(command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=PIPE_BYTES)


def watch(process: subprocess.Popen, act: Act | None = None) -> tuple[int, dict[str, Any] | None, str]:
    """Follow the script to its end, calling `act` at each part: exit code, summary, stderr."""
    lines, parts = [], 0
    for line in map(bytes.decode, process.stderr):
        lines.append(line)
        if found := DONE.match(line):
            parts += 1
            if act:
                act(parts, int(found[2]), process)
    printed = process.stdout.read()
    return process.wait(), json.loads(printed) if printed else None, "".join(lines)


def undisturbed(model: Path, images: Path, output: Path, part_images: int) -> None:
    """The same job in this process alone."""
    _, parts = open_job(output, model, images, part_images=part_images)
    worker = PartWorker(output, threads=1)
    for part in parts:
        worker(part)


def compare(found: Path, wanted: Path, images: Path) -> dict[str, int]:
    """Counts of what a job got wrong, each of which has to be 0, and of its rows."""
    names = [{path.name for path in folder.glob(PARTS)} for folder in (found, wanted)]
    rows = Counter(path for name in names[0] for path in pq.read_table(found / name)["path"].to_pylist())
    listed = {path.relative_to(images).as_posix() for path in images.rglob("*") if path.is_file()}
    differing = sum((found / name).read_bytes() != (wanted / name).read_bytes() for name in names[0] & names[1])
    return {
        "rows": rows.total(),
        "images_missing": len(listed - rows.keys()),
        "images_twice": sum(count > 1 for count in rows.values()),
        "images_unknown": len(rows.keys() - listed),
        "parts_differing": differing + len(names[0] ^ names[1]),
        "scratch_left": sum(1 for _ in found.glob(".*")),
    }


def main() -> None:
    """Disturb one long job in every way and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--part-images", type=int, default=50)
    parser.add_argument("--kills", type=int, default=4, help="workers killed in each half")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "benchmarks" / "bulk_ray_kill.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        record = disturbed(Path(scratch), args.images, args.part_images, args.kills)
    command = "python -m tests.scripts.bulk_kill"
    record["command"] = f"{command} --images {args.images} --part-images {args.part_images} --kills {args.kills}"
    with written_whole(args.output) as path:
        path.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def disturbed(folder: Path, images: int, part_images: int, kills: int) -> dict[str, Any]:
    """Kill `kills` workers in each half, interrupt in the middle, go on, and remove a node before the end."""
    model, pictures, output, reference = folder / "model.onnx", folder / "images", folder / "out", folder / "reference"
    write_model(model)
    write_images(pictures, images)
    undisturbed(model, pictures, reference, part_images)
    total, killed, events = len(list(reference.glob(PARTS))), set(), []
    options = ("--workers", "2", "--part-images", str(part_images))

    with two_nodes() as (cluster, node):
        remove = [node]

        def disturb(done: int, pid: int, script: subprocess.Popen) -> None:
            done += before
            if not before and done == total // 2:
                script.send_signal(signal.SIGINT)
                events.append(f"{done} parts done: SIGINT to the script")
            elif before and remove and done >= total * 3 // 4:
                cluster.remove_node(remove.pop(), allow_graceful=False)
                events.append(f"{done} parts done: a node removed")
            elif done % (total // (2 * kills + 2)) == 0 and pid not in killed and done < total * 3 // 4:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                events.append(f"{done} parts done: SIGKILL to the worker of the last")

        runs, before, began = [], 0, time.monotonic()
        for _ in range(2):
            code, summary, log = watch(start(model, pictures, output, *options, "--address", cluster.address), disturb)
            runs.append({"exit_code": code, "summary": summary})
            before = len(list(output.glob(PARTS)))
            if code not in (4, 130):
                sys.exit(f"exit code {code}\n{log}")
        seconds = time.monotonic() - began
    return {
        "images": images + len(UNREADABLE),
        "unreadable_images": len(UNREADABLE),
        "parts": total,
        "events": events,
        "exit_codes": [run["exit_code"] for run in runs],
        "parts_found_when_continued": runs[1]["summary"]["parts_found"],
        "workers_that_finished_parts": len(runs[1]["summary"]["parts_by_worker"]),
        "result": compare(output, reference, pictures),
        "seconds": round(seconds, 1),
        "versions": {name: __import__(name).__version__ for name in ("ray", "pyarrow", "onnxruntime")},
    }


if __name__ == "__main__":
    main()
