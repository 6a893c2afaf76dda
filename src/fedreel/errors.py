"""Errors that tell a person what was expected, what was found, where, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedreelError(Exception):
    """An error meant for the user. The command line prints it without a traceback and exits with status 2."""

    def __init__(self, problem: str, *, expected: str = "", found: str = "", where: str = "", hint: str = "") -> None:
        self.problem, self.expected, self.found, self.where, self.hint = problem, expected, found, where, hint
        rows = [("where", where), ("expected", expected), ("found", found), ("next", hint)]
        super().__init__(plain("\n".join([problem, *(f"  {name + ':':<9} {text}" for name, text in rows if text)])))


class RecipeError(FedreelError):
    """The recipe asks for something that does not exist or does not fit."""


class DataError(FedreelError):
    """Data is missing, corrupt, or not of the promised form."""


class RunError(FedreelError):
    """A run cannot start, go on, or be read."""


class Diverged(RunError):
    """Training ended in numbers that are not finite, or far from where it began: to run it again would not help."""


class NoMemory(RunError):
    """There was too little memory, mostly a GPU's: with less beside it, it may do."""


class PolicyError(FedreelError):
    """A site's policy does not allow what an order asks for."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with what is kept of the work. The command line says it; a program sees a KeyboardInterrupt."""


def plain(text: str, most: int = 0) -> str:
    """Text that others wrote, as it may stand on a terminal or in a log: what is neither a line's end nor printable,
    such as an escape sequence, is spelled out; what is longer than `most` is cut."""
    cut = text[:most] + "..." if most and len(text) > most else text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in cut)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the closest known word, or lists them all."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names) or 'none'}"
