"""Progress of long work: a live line on a terminal that leaves nothing, and silence elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from fedreel.machine.progress import ProgressBar


def told(terminal: bool) -> str:
    file = io.StringIO()
    with ProgressBar(Console(file=file, force_terminal=terminal, width=100)) as tell:
        for share in (0.25, 0.5, 1.0):
            tell("looking", share)
        tell("cutting", 0.75)
        tell._progress.refresh()
    return file.getvalue()


def test_a_terminal_sees_what_is_done_and_how_much_of_it() -> None:
    text = told(True)
    assert "cutting" in text
    assert "75%" in text


def test_at_the_end_the_line_is_erased() -> None:
    """The last thing written is the code that clears the line, not a text that would stay."""
    assert told(True).rpartition("cutting")[2].rstrip().endswith("\x1b[2K")


def test_files_and_pipes_get_nothing() -> None:
    assert told(False) == ""


def test_counts_are_shares() -> None:
    shares: list[tuple[str, float]] = []

    class Noting(ProgressBar):
        def __call__(self, what: str, share: float) -> None:
            shares.append((what, share))

    count = Noting(Console(file=io.StringIO())).counting("looking")
    for done, total in ((1, 4), (4, 4), (0, 0)):
        count(done, total)
    assert shares == [("looking", 0.25), ("looking", 1.0), ("looking", 0.0)]
