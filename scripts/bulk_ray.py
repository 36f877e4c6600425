"""Classify a folder or a Parquet of images on a Ray cluster: `python scripts/bulk_ray.py MODEL IMAGES -o DIR`.

DIR fills with part-NNNNNN.parquet: path, class, score, error, model (its SHA-256). Every image is one row; one that
cannot be used says so in `error`. Repeat the command to continue where it was stopped. Model, images and DIR lie on
storage that all machines see under the same path. Exit codes are those of infsa-deploy: 4 where a row has an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "models")]

from infsa_deploy.config import Trust  # noqa: E402
from infsa_deploy.errors import DeployError, HostError, ModelError  # noqa: E402
from infsa_deploy.runtime.sessions.artefact import is_engine  # noqa: E402

if TYPE_CHECKING:
    from infsa_deploy.bulk.job import Part
    from infsa_deploy.bulk.predict import PartResult, PartWorker

PYTHON_PATH = os.pathsep.join(filter(None, [*sys.path[:2], os.environ.get("PYTHONPATH")]))
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # no telemetry, no warning of it
INTERRUPTED = 130  # 128 + SIGINT
interrupts: list[int] = []  # signals of Ctrl-C so far
INSTALL = "pip install 'infsa-deploy[ray]'"


def main() -> None:
    """Parse, run, print."""
    args = parsed()
    signal.signal(signal.SIGINT, interrupt)
    try:
        with redirect_stdout(sys.stderr):  # Ray prints what it notices on stdout
            summary = run(args)
    except DeployError as error:
        leave(told(error))
    except ModuleNotFoundError as error:
        leave(told(HostError(f"this needs the package {error.name}.", "it is not installed.", INSTALL)))
    except KeyboardInterrupt:
        print("interrupted; the same command continues where this one was.", file=sys.stderr)
        leave(INTERRUPTED)
    print(json.dumps(summary) if args.json else "{images} images, {unreadable} unreadable: {output}".format(**summary))
    leave(ModelError.exit_code if summary["unreadable"] else 0)


def interrupt(number: int, frame: object) -> NoReturn:
    """Note Ctrl-C and raise it: Python drops what is raised where Ray is in a destructor just then."""
    interrupts.append(number)
    raise KeyboardInterrupt


def leave(code: int) -> NoReturn:
    """End the process; at once where Ray is still at work, whose own end under its threads has another exit code."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def told(error: DeployError) -> int:
    """Say what happened on stderr; the exit code."""
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="an ONNX file or an engine")
    parser.add_argument("images", type=Path, help="a folder of images, a Parquet file, or a folder of them")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--workers", type=positive, default=1, help="processes, each with a model of its own")
    parser.add_argument("--threads", type=positive, default=1, help="CPUs of each worker")
    parser.add_argument("--gpus", type=amount, help="GPUs of each worker; default: 1 for an engine or --provider cuda")
    parser.add_argument("--provider", choices=("cpu", "cuda"), default="cpu", help="for an ONNX file")
    parser.add_argument("--part-images", type=positive, default=256, help="images a part, the unit that is done again")
    parser.add_argument("--path-column", default="path", help="Parquet column that names each image")
    parser.add_argument("--bytes-column", help="Parquet column of encoded images, a.b for a field; default: open paths")
    parser.add_argument("--address", help="of a Ray cluster; default: RAY_ADDRESS, or Ray on this machine alone")
    parser.add_argument("--trust", action="append", default=[], help="SHA-256 of an engine or library; repeatable")
    parser.add_argument("--allow-host-code", action="store_true", help="engines here may run code on the processor")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser.parse_args()


def positive(text: str) -> int:
    """A whole number from 1."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def amount(text: str) -> float:
    """A finite number from 0."""
    if not 0 <= float(text) < math.inf:
        raise ValueError(text)
    return float(text)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Do what is left of the job and count all of it."""
    from infsa_deploy.bulk.job import open_job
    from infsa_deploy.bulk.predict import finished, remove_scratch

    started = time.monotonic()
    settings = ("path_column", "bytes_column", "provider", "part_images")
    job, parts = open_job(args.output, args.model, args.images, **{name: getattr(args, name) for name in settings})
    there = [known for part in parts if (known := finished(args.output, job.identity, part))]
    done = {known.part for known in there}
    if done:
        print(f"{len(done)} of {len(parts)} parts are there already", file=sys.stderr)
    remove_scratch(args.output)
    results = list(predicted(args, [part for part in parts if part.index not in done]))
    lost = [part.name for part in parts if finished(args.output, job.identity, part) is None]
    if lost:
        raise HostError(
            f"{len(lost)} parts are missing, {lost[0]} the first.", "were they removed?", "repeat the command."
        )
    remove_scratch(args.output)
    return {
        "output": str(args.output),
        "images": sum(result.images for result in (*there, *results)),
        "unreadable": sum(result.unreadable for result in (*there, *results)),
        "parts": len(parts),
        "parts_found": len(done),
        "parts_by_worker": Counter(result.worker for result in results if result.worker),
        "model": job.model_sha256,
        "seconds": round(time.monotonic() - started, 3),
    }


def predicted(args: argparse.Namespace, parts: Sequence[Part]) -> Iterator[PartResult]:
    """Predict parts in the order in which workers finish them."""
    if not parts:
        return
    ray = connected(args.address)
    try:
        yield from answers(ray, args, parts)
    except ray.exceptions.RayError as error:
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        fix = "repeat the command; Ray's logs tell why workers died."
        raise HostError("Ray gave up on a part.", why, fix) from error
    ray.shutdown()


def answers(ray: Any, args: argparse.Namespace, parts: Sequence[Part]) -> Iterator[PartResult]:
    """Map the parts over a pool of Ray actors; a lost one is replaced, and its part done again."""
    gpus = float(args.provider == "cuda" or is_engine(args.model)) if args.gpus is None else args.gpus
    note_capacity(ray.nodes(), {"CPU": args.threads, "GPU": gpus})
    items = [dataclasses.asdict(part) for part in parts]
    mapped = ray.data.from_items(items, override_num_blocks=len(items)).map(
        Worker,
        fn_constructor_args=(args.output.resolve(), args.threads, Trust(tuple(args.trust), args.allow_host_code)),
        compute=ray.data.ActorPoolStrategy(size=min(args.workers, len(items))),
        num_cpus=args.threads,
        num_gpus=gpus,
    )
    for row in mapped.iter_rows():
        answer = pickle.loads(row["answer"])
        if isinstance(answer, DeployError):
            raise answer
        print(f"part {answer.part}: {answer.images} images, by {answer.worker}", file=sys.stderr)
        yield answer
        if interrupts:
            raise KeyboardInterrupt


class Worker:
    """A Ray actor that predicts parts; what the user can act on comes back as an answer, not as Ray's exception."""

    def __init__(self, folder: Path, threads: int, trust: Trust) -> None:
        self.folder, self.threads, self.trust = folder, threads, trust
        self.worker: PartWorker | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, bytes]:
        from infsa_deploy.bulk.job import Part
        from infsa_deploy.bulk.predict import PartWorker

        try:
            self.worker = self.worker or PartWorker(self.folder, self.threads, self.trust)
            answer: PartResult | DeployError = self.worker(Part(**row))
        except DeployError as error:
            answer = error
        return {"answer": pickle.dumps(answer)}


def connected(address: str | None) -> Any:
    """Ray, connected to a cluster or started on this machine, with its own chatter off."""
    os.environ |= QUIET | os.environ
    try:
        import ray
        import ray.data
    except KeyError as error:  # Ray 2.56 and later, beside the amdsmi that Zeus installs and no AMD driver
        fix = "pip install 'ray[data]<2.56', or an environment without zeus and amdsmi."
        raise HostError("Ray cannot be imported.", f"it reads amdsmi, which fails: {error}", fix) from error
    try:
        environment = {"env_vars": {"PYTHONPATH": PYTHON_PATH}}
        ray.init(address=address, runtime_env=environment, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        fix = "give --address HOST:PORT of a running cluster (ray start --head prints it)."
        raise HostError(f"no Ray cluster at {address}.", str(error).splitlines()[0], fix) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return ray


def note_capacity(nodes: Sequence[dict[str, Any]], needed: dict[str, float]) -> None:
    """Say so where no machine can hold a worker, for Ray waits without a word."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(all(machine.get(kind, 0) >= count for kind, count in needed.items()) for machine in resources):
        wanted = ", ".join(f"{count:g} {kind}" for kind, count in needed.items())
        print(f"no machine of the cluster has {wanted} for a worker; waiting for one", file=sys.stderr)


if __name__ == "__main__":
    main()
