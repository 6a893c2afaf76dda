"""The demo: a short job of every system, several side by side, and one page that grows while they finish."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedreel.config import load_recipe
from fedreel.errors import RecipeError, nearest, plain
from fedreel.machine.files import new_folder
from fedreel.machine.processes import cores, in_processes
from fedreel.report.exhibits import RECORD, Stand, write_exhibition
from fedreel.systems import Demo, System, resolve, systems

AT_ONCE = 4  # systems at most, whatever cores there are: each takes half a gigabyte
NICE = 10  # of the systems that let the first one pass


def demo(out: Path, only: Collection[str] = (), settings: Mapping[str, Any] | None = None) -> Path:
    """Trains the systems that declare a demo (or `only` those of these names) into folders below `out` and shows what
    their models do: the page, which is there from the first system on. What an earlier demo finished in the same folder
    is not run again, and what it had begun goes on. `settings` change the recipes further."""
    began = time.monotonic()
    jobs = [Job(system, demo, out, settings or {}) for system, demo in _declared(only)]
    page = out / "index.html"
    workers = min(cores(), AT_ONCE, len(jobs))
    unfinished = [job for job in jobs if not job.done]
    open_jobs = [replace(job, waits=number > 0 and workers > 1) for number, job in enumerate(unfinished)]
    _write(page, jobs, running=True)
    _say(f"{len(open_jobs)} of {len(jobs)} systems to train, {workers} at a time. The page grows: {page.resolve()}")
    try:
        prepare = partial(share_cores, max(1, cores() // max(workers, 1)))
        for number, seconds in in_processes(Job.run, open_jobs, workers, prepare):
            _write(page, jobs, running=True)
            left = sum(not job.done for job in jobs)
            _say(f"{open_jobs[number].system.title}: done in {seconds:.0f} s; {left} to come")
    finally:
        _write(page, jobs, running=False)
    _say(f"The demo took {time.monotonic() - began:.0f} s.")
    return page


def share_cores(threads: int) -> None:
    """Several processes with a few threads each are quicker than one after another with all."""
    import torch

    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Job:
    """A system's part of the demo: its run, and the pictures of what its model does."""

    system: System
    demo: Demo
    out: Path
    settings: Mapping[str, Any]
    waits: bool = False  # whether processes of others, those of the system to be seen first, go before its own

    @property
    def folder(self) -> Path:
        return self.out / self.system.name

    @property
    def pictures(self) -> Path:
        return self.out / "pictures" / self.system.name

    @property
    def done(self) -> bool:
        """Pictures appear only when the run is finished, and all at once."""
        return (self.pictures / RECORD).exists()

    @property
    def stand(self) -> Stand:
        show = self.demo
        return Stand(self.system.title, show.purpose, show.metric, show.measures, self.folder, self.pictures)

    def run(self) -> float:
        """Train and show; how many seconds it took."""
        from fedreel.api import run

        began = time.monotonic()
        if self.waits:
            _give_way()
        _say(f"{self.system.title}: generating its files and training")
        changed = {"round.rounds": self.demo.rounds, **self.demo.settings, **self.settings}
        recipe = load_recipe(self.system.recipe, changed)
        run(recipe, self.folder, resume=(self.folder / "recipe.toml").exists())
        self.pictures.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(self.pictures) as temporary:
            resolve(self.demo.show)(self.folder, temporary).save(temporary)
        return time.monotonic() - began


def _give_way() -> None:
    """This process and those that it starts get what others leave; once, since a process does several jobs."""
    if hasattr(os, "nice"):
        os.nice(max(0, NICE - os.nice(0)))


def _declared(only: Collection[str]) -> list[tuple[System, Demo]]:
    """The quickest first, so that there is something to see; then the longest, so that cores are busy to the end."""
    known = {system.name: (system, system.demo) for system in systems() if system.demo}
    for name in only:
        if name not in known:
            raise RecipeError(f"the demo has no system '{name}'", hint=nearest(name, known))
    pairs = [(system, demo) for name, (system, demo) in known.items() if demo and (not only or name in only)]
    by_length = sorted(pairs, key=lambda pair: -pair[1].seconds)
    return [*by_length[-1:], *by_length[:-1]]


def _write(page: Path, jobs: Sequence[Job], *, running: bool) -> None:
    waiting = [job.system.title for job in jobs if not job.done]
    write_exhibition(page, [job.stand for job in jobs if job.done], waiting, running=running)


def _say(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)
