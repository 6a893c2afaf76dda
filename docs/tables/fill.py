"""Writes the stored tables beside this file into the documents that want them, and docs/claims.md anew. Run it after a
table was stored: `python docs/tables/fill.py`."""

from __future__ import annotations

from pathlib import Path

from fedreel.reproduce.claims_page import page
from fedreel.reproduce.stored import fill

TABLES = Path(__file__).parent
DOCS = TABLES.parent

if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        if fill(text, TABLES) != text:
            path.write_text(fill(text, TABLES))
            print(f"filled {path}")
    (DOCS / "claims.md").write_text(page(TABLES))
