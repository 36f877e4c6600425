"""Numbers of bytes as people read them."""

from __future__ import annotations

UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(count: float) -> str:
    """A size with three digits: `7.26 MB`, `1.24 GB`."""
    unit, name = next(((u, n) for u, n in UNITS if count >= u), (1.0, "B"))
    return f"{count / unit:.3g} {name}" if count < 999.5 * unit else f"{count / unit:,.0f} {name}"
