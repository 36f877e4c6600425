"""How large a picture may be: what can be decoded in the memory at hand, or what the user allows."""

from __future__ import annotations

from infsa_deploy.errors import ModelError
from infsa_deploy.files import format_bytes
from infsa_deploy.runtime.memory import available_bytes

SHARE = 2  # a decoded picture may take one part in so many of the free memory; the model needs the rest
ALWAYS_BYTES = 1 << 26  # decoded size below which nobody asks
UNKNOWN_MEMORY_PIXELS = 178_956_970  # where a system does not tell its memory: what Pillow refuses by itself
WINDOWED_PIXELS = 1 << 34  # of a file decoded part by part; time, not memory, is what bounds it


def check_pixels(name: str, size: tuple[int, int], pixel_bytes: int, allowed: int | None, kind: str | None) -> None:
    """Raise ModelError for a picture (width, height) that is too large to be decoded whole.

    Args:
        pixel_bytes: bytes that a decoded pixel takes.
        allowed: the most pixels, where the user says so; None takes what the memory allows.
        kind: the format, as Pillow calls it.
    """
    if allowed is None and size[0] * size[1] * pixel_bytes <= ALWAYS_BYTES:
        return
    free = available_bytes() if allowed is None else None
    most = allowed or (UNKNOWN_MEMORY_PIXELS if free is None else free // (SHARE * pixel_bytes))
    why = "" if free is None else f"{format_bytes(free)} of memory are free, of which decoding may take half; "
    fix = "cut it up, save it as .npy, or allow more with --max-pixels"
    if kind == "TIFF":
        fix = "pip install 'infsa-deploy[tiff]', which reads large TIFF files in parts, or allow more with --max-pixels"
    _check(name, size, most, why, fix)


def check_windowed(name: str, size: tuple[int, int], block_bytes: int, allowed: int | None) -> None:
    """Raise ModelError for a picture (width, height) that is too large to be decoded in blocks of `block_bytes`."""
    free = available_bytes()
    if free is not None and block_bytes > free // SHARE:
        why = f"a strip or row of tiles has {format_bytes(block_bytes)}, {format_bytes(free)} of memory are free."
        raise ModelError(f"{name} is too large to decode.", why, "save it in smaller tiles.")
    _check(name, size, allowed or WINDOWED_PIXELS, "", "cut it up, or allow more with --max-pixels")


def _check(name: str, size: tuple[int, int], most: int, why: str, fix: str) -> None:
    width, height = size
    if width * height > most:
        what = f"{name} is too large to decode: {width} x {height} is {width * height:,} pixels."
        raise ModelError(what, f"{why}at most {most:,} pixels are allowed.", f"{fix}.")
