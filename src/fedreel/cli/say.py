"""What the command line prints: text, whatever others have put into names of files, labels and messages."""

from __future__ import annotations

import logging

import typer

from fedreel.errors import plain


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """To stdout, or to stderr. Nothing but typer's and rich's own output goes another way."""
    typer.echo(plain(str(text)), err=err, nl=nl)


def one_line(text: str) -> str:
    """Of a text with names of files in it, which may hold ends of lines."""
    return text.replace("\n", "\\n")


def say_warnings() -> None:
    """What modules log goes to stderr, as plain as the rest."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_Plain())
    logging.lastResort = handler


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))
