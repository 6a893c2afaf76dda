"""What leaves a client with each method: openly, under [privacy], under [secure]. Of the declarations, into privacy.md.

python docs/tables/leaks.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedreel.core.method import Method
from fedreel.core.secure.rules import NUMBERS
from fedreel.registry import METHODS

PAGE = Path(__file__).parent.parent / "privacy.md"
BEGIN, END = "<!-- leaks -->", "<!-- end of leaks -->"


def main() -> None:
    text = PAGE.read_text()
    new = filled(text)
    if "--check" in sys.argv:
        sys.exit(0 if new == text else f"{PAGE} is not what the declarations say: python {sys.argv[0]}")
    PAGE.write_text(new)


def filled(text: str) -> str:
    """The page with the table of now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def table() -> str:
    head = (
        "| method | the server sees | with `[privacy]`, by clients | with `[privacy]`, by examples | with `[secure]` |"
        " with both, by clients |"
    )
    return "\n".join([head, "|---|---|---|---|---|---|", *(row(name) for name in METHODS.names())])


def row(name: str) -> str:
    method: type[Method] = METHODS.lookup(name)
    beside = sorted(method.sends)
    if method.sees == "each":
        return f"| `{name}` | each model, {', '.join(beside)} | refused | refused | refused | refused |"
    extra = sorted({*method.sends} - {*Method.sends})
    plain = method.local_training is Method.local_training and method.terms is Method.terms
    clients = "a noisy mean of models" if not extra else "refused"
    examples = "refused" if extra else "each model, with the client's noise" if plain else _UNSURE
    secure = "the sum" if all(kind in (*NUMBERS, "weights") for kind in method.sends.values()) else "refused"
    both = "a noisy sum" if "refused" not in (clients, secure) else "refused"
    return f"| `{name}` | each model, {', '.join(beside)} | {clients} | {examples} | {secure} | {both} |"


_UNSURE = "the same, if its clients train once and change no loss; else refused"

if __name__ == "__main__":
    main()
