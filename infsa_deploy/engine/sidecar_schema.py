"""Applies sidecar_schema.json, the one statement of what a sidecar may hold, which C++ applies too."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NoReturn

Object = Mapping[str, Any]

TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
BRACKETS = re.compile(rb'\\.|["\[\]{}]', re.DOTALL)
UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # control characters and lone surrogates
SHOWN = 40  # characters of a wrong value that an error repeats


def parse(content: bytes) -> dict[str, Any]:
    """The sidecar that `content` is, as JSON reads it; ValueError, with the place in it, for any other content."""
    schema = _schema()
    value: dict[str, Any] = _parse_text(content, schema["limits"])
    _check(value, schema, "the sidecar")
    for name in (*value["inputs"], *value["outputs"]):
        tensors = value["inputs"] if name in value["inputs"] else value["outputs"]
        _check_bounds(tensors[name], name, needed=name in value["inputs"])
    for name, tensor in value["inputs"].items():
        _check_size(tensor.get("maximum") or tensor["shape"], name, schema["limits"])
    _check_plugins(value["plugins"])
    if value["metadata"]:
        _check_image(value["metadata"]["image"], schema["limits"])
        _check_logits(value["outputs"].get("logits"), len(value["metadata"]["classes"]))
    return value


@functools.cache
def _schema() -> Any:
    return json.loads(resources.files("infsa_deploy.engine").joinpath("sidecar_schema.json").read_text("utf-8"))


def _parse_text(content: bytes, limits: Mapping[str, int]) -> Any:
    if len(content) > limits["bytes"]:
        raise ValueError(f"it has more than {limits['bytes']:,} bytes.")
    _check_depth(content, limits["depth"])
    value = json.loads(
        content.decode("utf-8"),
        parse_constant=_no_number,
        parse_float=_finite,
        object_pairs_hook=functools.partial(_object, most=limits["keys"]),
    )
    _check_strings(value)
    return value


def _check_depth(content: bytes, most: int) -> None:
    """Raise ValueError for arrays and objects nested too deep; counted without recursion, and not in strings."""
    depth, inside = 0, False
    for found in BRACKETS.finditer(content):
        sign = found[0]
        if sign == b'"':
            inside = not inside
        elif not inside and sign in b"[{":
            depth += 1
            if depth > most:
                raise ValueError(f"it is nested more than {most} deep.")
        elif not inside and sign in b"]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]], most: int) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice.")
    if len(found) > most:
        raise ValueError(f"an object has more than {most:,} keys.")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON.")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _check_strings(value: Any) -> None:
    """Raise ValueError for a string or key with a control character or a lone surrogate; `value` is not deep."""
    if isinstance(value, str) and UNFIT.search(value):
        raise ValueError(f"{value[:SHOWN]!r} holds characters that no text may have.")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_strings(key)
            _check_strings(item)
    elif isinstance(value, list):
        for item in value:
            _check_strings(item)


def _check(value: Any, schema: Object, place: str) -> None:
    """Apply the keywords of JSON Schema that sidecar_schema.json uses."""
    if "$ref" in schema:
        _check(value, _schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")], place)
        return
    kinds = schema.get("type", ())
    if kinds and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        _refuse(value, place, f"is no {kinds if isinstance(kinds, str) else ' or '.join(kinds)}")
    if "enum" in schema and value not in schema["enum"]:
        _refuse(value, place, f"is none of {', '.join(map(str, schema['enum']))}")
    if "not" in schema and value in schema["not"]["enum"]:
        _refuse(value, place, "is not allowed")
    if isinstance(value, str):
        _check_string(value, schema, place)
    elif isinstance(value, list):
        _check_count(value, schema, "Items", place)
        for index, item in enumerate(value):
            _check(item, schema.get("items", {}), f"{place}[{index}]")
    elif isinstance(value, dict):
        _check_object(value, schema, place)
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        _refuse(value, place, f"is not from {schema.get('minimum', '')} to {schema.get('maximum', '')}")


def _check_string(value: str, schema: Object, place: str) -> None:
    _check_count(value, schema, "Length", place)
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        _refuse(value, place, f"does not match {schema['pattern']}")
    if schema.get("format") == "file-name" and (value in (".", "..") or "/" in value or "\\" in value):
        _refuse(value, place, "is no bare file name")


def _check_object(value: dict[str, Any], schema: Object, place: str) -> None:
    _check_count(value, schema, "Properties", place)
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        raise ValueError(f"{place} has no {missing[0]}.")
    known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name, item in value.items():
        _check(name, schema.get("propertyNames", {}), f"a name in {place}")
        if name not in known and other is False:
            raise ValueError(f"{place} has an unknown entry {name[:SHOWN]!r}.")
        _check(item, known.get(name, other), name if place == "the sidecar" else f"{place}.{name[:SHOWN]}")


def _check_count(value: Sequence[Any] | Object, schema: Object, what: str, place: str) -> None:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}", len(value))
    if not least <= len(value) <= most:
        raise ValueError(f"{place} has {len(value):,} {what.lower()}, not from {least} to {most:,}.")


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _refuse(value: Any, place: str, why: str) -> NoReturn:
    shown = json.dumps(value)[:SHOWN] if isinstance(value, str | int | float) else type(value).__name__
    raise ValueError(f"{place} {why}: {shown}.")


def _check_bounds(tensor: Object, name: str, *, needed: bool) -> None:
    shape: list[int] = tensor["shape"]
    bounds = [tensor.get(kind) for kind in ("minimum", "optimum", "maximum")]
    if bounds == [None, None, None]:
        if needed and -1 in shape:
            raise ValueError(f"input {name!r} has a free size and no bounds.")
        return
    ranks = {len(bound) if bound is not None else None for bound in bounds}
    if ranks != {len(shape)} or not all(
        low <= best <= high and (size < 0 or low == size == high)
        for size, (low, best, high) in zip(shape, zip(*bounds, strict=True), strict=True)
    ):
        raise ValueError(f"the bounds of {name!r} do not fit its shape, or one another.")


def _check_size(largest: Sequence[int], name: str, limits: Mapping[str, int]) -> None:
    if largest and largest[0] > limits["batch"]:
        raise ValueError(f"input {name!r} takes a batch of {largest[0]:,}; at most {limits['batch']:,} are allowed.")
    if math.prod(largest) > limits["elements"]:
        raise ValueError(f"input {name!r} has more than {limits['elements']:,} elements.")


def _check_plugins(plugins: Object) -> None:
    used = plugins["mode"] == "plugins"
    if (plugins["library"] is not None, plugins["sha256"] is not None) != (used, used) or plugins["embedded"] > used:
        raise ValueError("plugins: the library, its hash and the mode do not fit one another.")


def _check_image(image: Object, limits: Mapping[str, int]) -> None:
    if not len(image["mean"]) == len(image["std"]) == image["channels"]:
        raise ValueError("the image input has not one mean and one std a channel.")
    if image["height"] * image["width"] > limits["pixels"]:
        raise ValueError(f"the image input has more than {limits['pixels']:,} pixels.")


def _check_logits(logits: Object | None, classes: int) -> None:
    if logits and not classes and len(logits["shape"]) != 2:
        return  # scores of something else than pictures
    if logits and (not logits["shape"] or logits["shape"][-1] not in (-1, classes)):
        raise ValueError(f"the logits {logits['shape'][:8]} are not those of {classes:,} classes.")
