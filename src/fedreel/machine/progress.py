"""Progress of long work for a person: a live line on a terminal, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Tell = Callable[[str, float], None]  # what is being done, and which share of it is done
Count = Callable[[int, int], None]  # how many are done, of how many


class ProgressBar:
    """Call it with what is being done and which share of it is done: a `Tell`. At the end nothing of it stays."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        shown = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal)
        self._task = self._progress.add_task("", total=1.0, visible=False)
        self._what = ""

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def counting(self, what: str) -> Count:
        """To be called with how many are done, of how many."""
        return lambda done, total: self(what, done / max(total, 1))

    def __call__(self, what: str, share: float) -> None:
        if what != self._what:
            self._what = what
            self._progress.reset(self._task, total=1.0, description=what, visible=True)
        self._progress.update(self._task, completed=share)
