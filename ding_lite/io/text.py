"""Numbers as texts for people: in tables, reports and along axes."""

from __future__ import annotations

import math


def as_text(value: float) -> str:
    """Format a number with few digits, such as 12,480, 0.0123 and 341.2."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def as_tick(value: float) -> str:
    """Format a number along an axis, such as 0.5, 20k and 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def as_clock(seconds: float) -> str:
    """Format a duration, such as 2:30 and 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
