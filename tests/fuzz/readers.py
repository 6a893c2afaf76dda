"""All harnesses, by name."""

from __future__ import annotations

from fuzz import arrays, media, messages, sums, texts

HARNESSES = {h.name: h for part in (texts, arrays, media, messages, sums) for h in part.HARNESSES}
