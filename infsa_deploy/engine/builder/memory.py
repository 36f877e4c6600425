"""Predicting the memory an engine needs for activations, before anything is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

VIEWS = frozenset({"DEQUANTIZE", "IDENTITY", "SHUFFLE", "SQUEEZE", "UNSQUEEZE"})  # a product dequantizes as it reads
ELEMENTWISE = frozenset(
    {"ACTIVATION", "CAST", "ELEMENTWISE", "NORMALIZATION", "QUANTIZE", "SCALE", "SELECT", "SOFTMAX", "UNARY"}
)


@dataclass(frozen=True)
class Step:
    """One layer of a network: its kind, and the tensors it reads and makes, by name."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def activation_bytes(steps: Sequence[Step], sizes: Mapping[str, int], outputs: Sequence[str]) -> int:
    """Bytes of the tensors alive together at the worst moment.

    Layers run in the order given. A tensor lives from its layer to its last reader, a network input from the start;
    constants do not count; views take nothing; an element-wise layer writes over an input that ends with it. A
    builder fuses more than that, and needs scratch memory besides: this is an estimate of its need, not a bound.

    Args:
        steps: the layers.
        sizes: bytes of each tensor, by name.
        outputs: the network's outputs, alive to the end.
    """
    constants = {name for step in steps if step.kind == "CONSTANT" for name in step.outputs}
    roots: dict[str, str] = {}
    for step in steps:
        if step.kind in VIEWS and step.inputs:
            roots.update(dict.fromkeys(step.outputs, roots.get(step.inputs[0], step.inputs[0])))
    readers = Counter(roots.get(name, name) for step in steps for name in step.inputs)
    readers.update(roots.get(name, name) for name in outputs)
    made = {name for step in steps for name in step.outputs}
    live = sum(sizes[name] for name in {name for step in steps for name in step.inputs} - made)
    peak = live
    for step in steps:
        if step.kind == "CONSTANT":
            continue
        new = sum(sizes[name] for name in step.outputs if name not in roots)
        ended = _ended(step, roots, readers) - constants
        freed = sum(sizes[name] for name in ended)
        overwrites = step.kind in ELEMENTWISE and any(sizes[name] >= new for name in ended)
        peak = max(peak, live + (0 if overwrites else new))
        live += new - freed - sum(sizes[name] for name in step.outputs if name not in roots and not readers[name])
    return peak


def _ended(step: Step, roots: Mapping[str, str], readers: Counter[str]) -> set[str]:
    """The tensors that this step is the last to read."""
    read = [roots.get(name, name) for name in step.inputs]
    readers.subtract(read)
    return {name for name in read if readers[name] == 0}
