"""A job: a recipe with the objects made of it. What an engine gets to build its workers from."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from fedreel.config import Recipe, build
from fedreel.core.client import Worker
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.method import Method
from fedreel.core.server_training import Study
from fedreel.core.state import PrivateStore
from fedreel.core.task import Examples, Population, Task, What, studied
from fedreel.errors import RecipeError
from fedreel.registry import METHODS, TASKS, lookup


@dataclass(frozen=True)
class Job:
    """`run` names the run for ever; `life` counts its beginnings: 1, and one more for every resume."""

    recipe: Recipe
    task: Task
    method: Method
    device: torch.device
    out: Path
    run: str = "run"
    life: int = 1

    def population(self) -> Population:
        return self.task.population(self.recipe.data, self.recipe.data.seed)

    def worker(self) -> Worker:
        """A worker for all clients whose data lie here, with its state and ledger in the run directory."""
        policy = Policy.read(Path(self.recipe.policy)) if self.recipe.policy else Policy()
        store, ledger = PrivateStore(self.out / "clients"), Ledger(self.out / "ledger.jsonl")
        return make_worker(self, self.population(), store, ledger, policy)


def make_worker(job: Job, population: Population, store: PrivateStore, ledger: Ledger, policy: Policy) -> Worker:
    recipe = job.recipe
    return Worker(
        job.task,
        job.method,
        recipe.train,
        population,
        rounds=recipe.round.rounds,
        seed=recipe.seed,
        device=job.device,
        store=store,
        ledger=ledger,
        policy=policy,
    )


def make_study(job: Job, what: What, share: float, examples: Examples) -> Study:
    """What trains at the server, on its own examples."""
    recipe = job.recipe
    subject = studied(job.task).subject(what, examples, share)
    return Study(subject, recipe.server or recipe.train, recipe.round.rounds, recipe.seed, job.device)


def make_task(recipe: Recipe) -> Task:
    return _make(recipe.task, lookup(TASKS, recipe.task["name"]), "task")


def make_method(recipe: Recipe) -> Method:
    method: Method = _make(recipe.method, lookup(METHODS, recipe.method["name"]), "method")
    if recipe.server is not None and not method.studies:
        raise RecipeError(
            f"with {recipe.method['name']} the server does not train",
            where="[server]",
            expected="no such section",
            hint="take it out, or choose a method such as fedlid",
        )
    return method


def resolved(recipe: Recipe, task: Task, method: Method) -> Recipe:
    """The recipe with every setting of its task and method written out: a later default does not change it."""
    tables = {"task": recipe.task, "method": recipe.method}
    for section, made in (("task", task), ("method", method)):
        values = {f.name: getattr(made, f.name) for f in fields(made)}  # type: ignore[arg-type]
        plain = {k: v for k, v in values.items() if isinstance(v, bool | int | float | str | list | tuple | dict)}
        tables[section] = {"name": tables[section]["name"], **plain}
    return replace(recipe, **tables)  # type: ignore[arg-type]


def _make(table: dict[str, Any], cls: type, section: str) -> Any:
    return build(cls, {k: v for k, v in table.items() if k != "name"}, f"[{section}] {table['name']}")
