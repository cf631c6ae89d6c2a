"""Numbers as people read them."""

from __future__ import annotations

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(number: float, unit: str = "") -> str:
    """A number with three digits and a unit prefix: 1.24 GB."""
    for size, prefix in UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()
