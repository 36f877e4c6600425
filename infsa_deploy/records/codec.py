"""Records to JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

R = TypeVar("R")


def to_json(record: Any, *, indent: int | None = 2) -> str:
    """Render a record, or a list of records, as JSON; numbers that are none in it (NaN, infinities) become null."""
    plain = [dataclasses.asdict(r) for r in record] if isinstance(record, list) else dataclasses.asdict(record)
    return json.dumps(_finite(plain), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(kind: type[R], text: str) -> R:
    """Read a record of type `kind` back; ValueError, KeyError or TypeError when the text is no such record."""
    return decode(kind, parse_json(text))


def parse_json(text: str | bytes) -> Any:
    """What JSON text says; ValueError when it is none, or nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep.") from None


def decode(kind: type[R], value: Any) -> R:
    """A record of type `kind` from what JSON made of it; raises as from_json."""
    return typing.cast(R, _decode(kind, value))


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise TypeError(f"{kind.__name__} is an object, not {type(value).__name__}")
        hints = typing.get_type_hints(kind)
        return kind(**{name: _decode(hints[name], item) for name, item in value.items()})
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(_decode(k, item) for k, item in zip(kinds, value, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: _decode(arguments[1], item) for name, item in value.items()}
    if origin in (types.UnionType, typing.Union) and value is not None:
        composite = [k for k in arguments if typing.get_origin(k) is tuple or dataclasses.is_dataclass(k)]
        return _decode(composite[0], value) if composite and isinstance(value, list | dict) else value
    return value
