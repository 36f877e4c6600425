"""Ctrl-C that comes in a destructor, while the given bulk_ray.py waits for answers; prints how that ended.

A process of its own, as what is raised in a destructor is nothing for one that goes on to run tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class InterruptedWhenDestroyed:
    """As Ray's objects may be, which are destroyed between any two parts."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)
        for _ in range(3):  # Python looks for signals here at the latest
            pass


def rows() -> Iterator[dict[str, Any]]:
    for part in range(3):
        InterruptedWhenDestroyed()
        yield {"answer": pickle.dumps(SimpleNamespace(part=part, images=1, worker="w"))}


def main() -> None:
    spec = importlib.util.spec_from_file_location("bulk_ray", sys.argv[1])
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    signal.signal(signal.SIGINT, script.interrupt)
    dataset = SimpleNamespace(map=lambda *arguments, **options: SimpleNamespace(iter_rows=rows))
    data = SimpleNamespace(from_items=lambda *_, **__: dataset, ActorPoolStrategy=lambda size: None)
    ray = SimpleNamespace(nodes=list, data=data)
    args = argparse.Namespace(
        gpus=0.0, threads=1, workers=1, output=Path("out"), model=Path("model.onnx"), trust=[], allow_host_code=False
    )
    try:
        answered = [answer.part for answer in script.answers(ray, args, [])]
        print(f"went on to the end: {answered}")
    except KeyboardInterrupt:
        print(f"interrupted by {script.interrupts}")


if __name__ == "__main__":
    main()
