"""What each task brings with it: one light declaration a task, and the lists that others read off them."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

GROUP = "fedreel.tasks"  # of the entry points by which packages bring tasks
DECLARATION = "SYSTEM"  # what a declaration is called in its module

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verb:
    """What a task can do for a user: `fedreel NAME` on the command line, `fedreel.NAME` in Python."""

    name: str
    function: str  # MODULE:FUNCTION with the options of tasks/use/options.py; its module imports no torch
    example: str = "FILE"  # what to give it beside --model, for the hint at the end of a run
    answers: str = ""  # where several tasks share a verb: MODULE:FUNCTION that answers for this one
    trained: bool = True  # whether it wants a model of the task: `--model RUN`


@dataclass(frozen=True)
class Demo:
    """What `fedreel demo` runs of a system's recipe, and what it shows: the trained model at work, beside its curve."""

    purpose: str  # what the system is for, in one plain sentence
    show: str  # MODULE:FUNCTION that takes the run and a folder for pictures, and gives a report.exhibits.Exhibit
    metric: str  # of the test, whose curve is drawn
    measures: str  # what that metric is, in plain words
    rounds: int
    seconds: int  # of one core, about: the quickest system comes first, then the longest
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the recipe that are others here


@dataclass(frozen=True)
class System:
    """A task, and what there is around it. Modules are named, not imported: reading declarations is quick."""

    task: str  # the name that recipes know it by
    cls: str  # MODULE:CLASS of the task
    verbs: tuple[Verb, ...] = ()
    name: str = ""  # of the published system: `fedreel reproduce NAME`, docs/systems/NAME.md
    title: str = ""  # as its paper writes the name; a recipe's `system`
    recipe: str = ""  # a recipe's name or file, which runs it on the playground
    demo: Demo | None = None  # None: it is not shown there
    tables: str = ""  # the module with the TABLES of `fedreel reproduce`
    playground: Mapping[str, str] = field(default_factory=dict)  # parts of the generated world -> modules

    def verb(self, name: str) -> Verb | None:
        return next((verb for verb in self.verbs if verb.name == name), None)


def built_in() -> list[System]:
    """Those of fedreel's own folders, in the order of their names."""
    tasks = importlib.import_module("fedreel.tasks")
    folders = [importlib.import_module(f"fedreel.tasks.{m.name}") for m in iter_modules(tasks.__path__) if m.ispkg]
    return [getattr(folder, DECLARATION) for folder in folders if hasattr(folder, DECLARATION)]


def systems() -> list[System]:
    """fedreel's own, then those of installed packages whose entry point names a declaration, MODULE:SYSTEM. One that
    names a task's class has nothing to list beside its name, and is not imported for that."""
    return [*built_in(), *_installed()]


def find_system(task: str) -> System | None:
    """The declaration of a task, if it has one."""
    return next((system for system in systems() if system.task == task), None)


def verbs() -> dict[str, Verb]:
    """All verbs by name. Tasks may share one; a package cannot give another meaning to one that is there."""
    known: dict[str, Verb] = {}
    for system in systems():
        for verb in system.verbs:
            if known.setdefault(verb.name, verb).function != verb.function:
                log.warning("the verb '%s' of the task '%s' is left out: there is one already", verb.name, system.task)
    return known


def tasks_with(verb: str) -> list[str]:
    """The tasks whose models have this use."""
    return [system.task for system in systems() if system.verb(verb)]


def resolve(target: str) -> Any:
    """What MODULE:NAME names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _installed() -> Iterator[System]:
    own = {system.task for system in built_in()}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.attr != DECLARATION or entry.name in own:
            continue
        try:
            declared = resolve(entry.value)
        except Exception as error:  # of somebody else's package, which must not stop ours
            log.warning("the task '%s' (%s) is left out: %s", entry.name, entry.value, error)
            continue
        yield replace(declared, task=entry.name)
