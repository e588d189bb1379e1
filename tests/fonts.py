"""Fonts that matplotlib opens once and keeps open."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


def open_fonts() -> None:
    """Let it open all that pictures need, before a test counts open descriptors."""
    figure = Figure()
    figure.text(0.1, 0.1, "plain")
    figure.text(0.1, 0.2, "bold", fontweight="bold")
    figure.savefig(io.BytesIO())
