"""Colours that text and controls have can be told from what is behind them, in light and in dark: WCAG 2.2, AA."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

SHEETS = [files("fedreel.report") / "page.css", files("fedreel.ui") / "static" / "ui.css"]
BLOCK = re.compile(r":root \{([^}]*)\}")
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{([^}]*)\}\s*\}")
COLOUR = re.compile(r"--([\w-]+): (#[0-9a-fA-F]{3,6})\b")
TEXT = [  # text, behind it
    *((ink, back) for ink in ("ink", "soft", "s0", "good", "bad") for back in ("paper", "card", "wash")),
    ("button-ink", "button"),
    ("paper", "ink"),  # hover values
]
MARKS = [(mark, back) for mark in ("s0", "edge", "good", "bad") for back in ("paper", "card")]  # borders, the focus


def colours(scheme: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for sheet in SHEETS:
        text = sheet.read_text()
        found |= dict(COLOUR.findall("".join(BLOCK.findall(DARK.sub("", text)))))
    if scheme == "dark":
        for sheet in SHEETS:
            found |= dict(COLOUR.findall("".join(DARK.findall(sheet.read_text()))))
    return found


def contrast(one: str, other: str) -> float:
    """Of WCAG: (lighter + 0.05) / (darker + 0.05)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * d for d in colour[1:])
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_measure_is_that_of_wcag() -> None:
    assert contrast("#000", "#fff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_controls_can_be_told_from_what_is_behind_them(scheme: str) -> None:
    known = colours(scheme)
    pairs = [(one, other, 4.5) for one, other in TEXT] + [(one, other, 3.0) for one, other in MARKS]
    weak = {
        (a, b): round(contrast(known[a], known[b]), 2) for a, b, need in pairs if contrast(known[a], known[b]) < need
    }
    assert weak == {}
