"""Sizes and times in the words that people read, on pages and in progress lines."""

from __future__ import annotations


def size(value: float | None) -> str:
    """Bytes in decimal units, three digits."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"


def clock(seconds: float, decimals: int = 1) -> str:
    """m:ss.t, or h:mm:ss.t from an hour on."""
    unit = 10**decimals
    total, part = divmod(round(seconds * unit), unit)
    hours, minutes = divmod(total // 60, 60)
    start = f"{hours}:{minutes:02d}" if hours else str(minutes)
    return f"{start}:{total % 60:02d}" + (f".{part:0{decimals}d}" if decimals else "")
