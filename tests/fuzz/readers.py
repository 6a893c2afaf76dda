"""All harnesses, by name."""

from __future__ import annotations

from fuzz import arrays, media, messages, sums, texts, transfers

HARNESSES = {h.name: h for part in (texts, arrays, media, messages, sums, transfers) for h in part.HARNESSES}
