"""Sidecars that are to be refused, and odd ones that are to be read: the same table for Python and for C++.

Each is a change of a sidecar that is in order. `damaged(text)` makes the refused ones of it, by name, as bytes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

MISSING = object()
HOSTILE_NUMBERS = (3.9, True, 2**32 + 3, -1, 0, 2**70, 1e300, "3", None, [3], {"a": 1})
HOSTILE_LIBRARIES = ("", ".", "..", "../evil.so", "/tmp/evil.so", "a/b.so", "a\\b.so", "x" * 256 + ".so", "a\x00b.so")
HUGE_IMAGE = {"channels": 1, "height": 2**20, "width": 2**20, "mean": [0], "std": [1]}


def plugin_use(library: str) -> dict[str, Any]:
    """The sidecar's entry for an engine that needs `library`, with a hash of zeros."""
    return {"mode": "plugins", "library": library, "sha256": "0" * 64, "embedded": False, "layers": {}, "proof": None}


# (name, path in the sidecar, what stands there instead)
CHANGES: tuple[tuple[str, tuple[str | int, ...], Any], ...] = (
    *((f"channels {value!r}", ("metadata", "image", "channels"), value) for value in HOSTILE_NUMBERS if value != 3),
    *((f"height {value!r}", ("metadata", "image", "height"), value) for value in HOSTILE_NUMBERS),
    *((f"engine_bytes {value!r}", ("engine_bytes",), value) for value in HOSTILE_NUMBERS if value != 2**32 + 3),
    *((f"library {value[:12]!r}", ("plugins",), plugin_use(value)) for value in HOSTILE_LIBRARIES),
    *((f"onnx {value[:12]!r}", ("onnx",), value) for value in HOSTILE_LIBRARIES),
    *((f"version {value!r}", ("flavour_version",), value) for value in ("", "abc", "1", "1.x", "1.7\n", 1.7, "9" * 80)),
    *((f"target {value!r}", ("targets", 0), value) for value in ("", "sm", "80", "sm80; rm", 80, "sm80\n")),
    *((f"hash {value!r}", ("engine_sha256",), value) for value in ("", "0" * 63, "G" * 64, "A" * 64, "0" * 64 + "\n")),
    *((f"options {value!r}", ("options",), value) for value in ([], None, {"invented": 1}, {"strip": 1})),
    *((f"inputs {value!r}", ("inputs",), value) for value in ({}, [], None, {"": {}}, {"image": {}}, {"image": None})),
    *((f"classes {value!r}", ("metadata", "classes"), value) for value in ([], ["a"], "abc", [1, 2, 3], [["a"]])),
    *((f"std {value!r}", ("metadata", "image", "std"), value) for value in ([0.5], [0, 1, 1], [1] * 4, [], [1e-9] * 3)),
    *((f"crop {value!r}", ("metadata", "image", "crop_fraction"), value) for value in (0, 1e-300, 1.5, "1", True)),
    *((f"multiple {value!r}", ("metadata", "image", "multiple_of"), value) for value in (0, -16, 1.0, True, 2**32 + 1)),
    ("a rank of 9", ("inputs", "image"), {"dtype": "float32", "shape": [1] * 9}),
    ("a rank of 100,000", ("inputs", "image"), {"dtype": "float32", "shape": [1] * 100_000}),
    ("bounds of another rank", ("inputs", "image", "maximum"), [4, 3, 4]),
    ("bounds of rank 9", ("inputs", "image", "maximum"), [1] * 9),
    ("no bounds for a free size", ("inputs", "image", "maximum"), None),
    ("no bounds at all", ("inputs", "image"), {"dtype": "float32", "shape": [-1, 3, 4, 4]}),
    ("a size of -2", ("inputs", "image", "shape"), [-2, 3, 4, 4]),
    ("a size of 0", ("inputs", "image", "shape"), [-1, 0, 4, 4]),
    ("a size of 2.0", ("inputs", "image", "shape"), [-1, 3, 4.0, 4]),
    ("a batch of 2^40", ("inputs", "image", "maximum"), [2**40, 3, 4, 4]),
    ("a batch of 2^21", ("inputs", "image", "maximum"), [2**21, 3, 4, 4]),
    ("a smallest batch of 0", ("inputs", "image", "minimum"), [0, 3, 4, 4]),
    ("a smallest batch above the best", ("inputs", "image", "minimum"), [3, 3, 4, 4]),
    ("a best batch above the largest", ("inputs", "image", "optimum"), [9, 3, 4, 4]),
    ("a bound that is not the fixed size", ("inputs", "image", "maximum"), [4, 3, 4, 5]),
    ("too many elements", ("inputs", "image"), {"dtype": "float32", "shape": [2**20, 2**10, 2**10, 1]}),
    ("too many pixels", ("metadata", "image"), HUGE_IMAGE),
    ("too few logits", ("outputs", "logits", "shape"), [-1, 2]),
    ("too many logits", ("outputs", "logits", "shape"), [-1, 100]),
    ("logits without sizes", ("outputs", "logits", "shape"), []),
    ("logits of size 0", ("outputs", "logits", "shape"), [-1, 0]),
    ("an unknown type", ("inputs", "image", "dtype"), "float8"),
    ("an unknown flavour", ("flavour",), "tensorrt-pro"),
    ("plugins without a library", ("plugins", "mode"), "plugins"),
    ("a library without a hash", ("plugins",), plugin_use("l.so") | {"sha256": None}),
    ("a library that no plugin needs", ("plugins",), plugin_use("l.so") | {"mode": "none"}),
    ("embedded without plugins", ("plugins", "embedded"), True),
    ("a class name with a line break", ("metadata", "classes", 0), "a\nb"),
    ("a class name with an escape", ("metadata", "classes", 0), "\x1b[2J"),
    ("an unknown entry", ("invented",), 1),
    ("an unknown entry of the image", ("metadata", "image", "invented"), 1),
    ("no targets", ("targets",), MISSING),
    ("no list of targets", ("targets",), "sm80"),
    ("an empty list of targets", ("targets",), []),
    ("no metadata entry", ("metadata",), MISSING),
    ("an object with 20,000 keys", ("precision", "kept_fp32"), {f"node {index}": "" for index in range(20_000)}),
    ("nested 40 deep", ("metadata", "architecture"), {"a": json.loads("[" * 40 + "]" * 40)}),
)  # fmt: skip


def damaged(text: str) -> Mapping[str, bytes]:
    """The sidecars to be refused, made of `text`, one that is in order: 3 channels of 4 x 4, and plugin mode `none`."""
    good = json.loads(text)
    found = {name: json.dumps(changed(good, path, value)).encode() for name, path, value in CHANGES}
    body = text.strip().removeprefix("{")
    return found | {
        "empty": b"",
        "no JSON": b"no JSON",
        "null": b"null",
        "a list": f"[{text}]".encode(),
        "a number": b"1",
        "nested 200,000 deep": b"[" * 200_000 + b"]" * 200_000,
        "an entry nested 200,000 deep": text.replace('"options": {', '"options": ' + '{"a":' * 200_000, 1).encode(),
        "never closed": b'{"a":' * 200_000,
        "a key twice": b'{"flavour": "tensorrt",' + body.encode(),
        "two values": (text + text).encode(),
        "a byte-order mark": b"\xef\xbb\xbf" + text.encode(),
        "no UTF-8": text.encode().replace(b'"onnx": "', b'"onnx": "\xff\xfe', 1),
        "UTF-16": text.encode("utf-16"),
        "a lone surrogate": text.replace('"onnx": "', '"onnx": "\\ud800', 1).encode(),
        "a raw control character": text.replace('"onnx": "', '"onnx": "\t', 1).encode(),
        "NaN": _number(text, "NaN"),
        "Infinity": _number(text, "Infinity"),
        "1e400": _number(text, "1e400"),
        "cut off": text[: len(text) // 2].encode(),
        "larger than 16 MiB": text.encode() + b" " * 2**24,
    }


def odd(text: str) -> Mapping[str, bytes]:
    """Sidecars that look odd and are in order, made of `text` as in `damaged`."""
    good = json.loads(text)
    for absent in ("tile_tokens", "quantization_error"):
        good["metadata"].pop(absent, None)
    changes: tuple[tuple[str, tuple[str | int, ...], Any], ...] = (
        ("a scalar input", ("inputs", "scale"), {"dtype": "float32", "shape": []}),
        ("a library", ("plugins",), plugin_use("libinfsa_plugins.so")),
        ("a library named beyond ASCII", ("plugins",), plugin_use("..bibliothèque 2.so")),
        ("a rank of 8", ("inputs", "wide"), {"dtype": "int8", "shape": [1] * 8}),
        ("no metadata", ("metadata",), None),
        ("names beyond ASCII", ("metadata", "classes", 0), "Ameise \U0001f41c"),
        ("an ONNX file named beyond ASCII", ("onnx",), "modèle 2.onnx"),
        ("every bound is 1", ("inputs", "image"), {"dtype": "float32", "shape": [1, 3, 4, 4], "minimum": [1, 3, 4, 4],
                                                  "optimum": [1, 3, 4, 4], "maximum": [1, 3, 4, 4], "lowered": None}),
        ("a version of two numbers", ("flavour_version",), "10.13"),
        ("a free last axis of the logits", ("outputs", "logits", "shape"), [-1, -1]),
        ("nested 20 deep", ("metadata", "architecture"), {"a": json.loads("[" * 20 + "]" * 20)}),
    )  # fmt: skip
    found = {name: json.dumps(changed(good, path, value)).encode() for name, path, value in changes}
    return found | {"without spaces": json.dumps(good, separators=(",", ":")).encode()}


def changed(good: Mapping[str, Any], path: tuple[str | int, ...], value: Any) -> Any:
    """A copy with `value` at `path`, or without what stands there where it is MISSING."""
    result: Any = copy.deepcopy(good)
    inner = result
    for step in path[:-1]:
        inner = inner[step]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return result


def _number(text: str, literal: str) -> bytes:
    """`build_s`, whatever it is, as `literal`."""
    value = json.loads(text)["build_s"]
    return text.replace(f'"build_s": {value}', f'"build_s": {literal}', 1).encode()
