"""A job: a recipe with the objects made of it. What an engine gets to build its workers from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedreel.config import Recipe, build, settings_of
from fedreel.core.abilities import Contrastable, Supervision, able
from fedreel.core.attack import FlippedLabels
from fedreel.core.budget import Budget
from fedreel.core.client import Worker
from fedreel.core.discretion import make_discretion
from fedreel.core.exchange import Ledger, Policy
from fedreel.core.method import Method
from fedreel.core.secure.rules import check_sums
from fedreel.core.server_training import ServerTraining
from fedreel.core.state import TRAINED, PrivateStore, TrainedModels
from fedreel.core.task import Examples, Population, Task
from fedreel.core.transfer.together import check_together
from fedreel.core.weights import TensorInfo
from fedreel.errors import RecipeError
from fedreel.registry import METHODS, TASKS


@dataclass(frozen=True)
class Job:
    """`run_id` names the run for ever; `start` counts how often it was started: 1, and one more for every resume."""

    recipe: Recipe
    task: Task
    method: Method
    device: torch.device
    out: Path
    run_id: str = "run"
    start: int = 1

    def __post_init__(self) -> None:
        check_fit(self.task, self.method)
        check_sums(self.recipe, self.task, self.method)

    def population(self) -> Population:
        return self.task.population(self.recipe.data, self.recipe.data.seed)

    def worker(self, keep_trained: bool = False) -> Worker:
        """A worker for all clients whose data lie here, with its state and ledger in the run directory, and if wanted
        with the clients' models as they trained them in the first and in the last round."""
        if not isinstance(keep_trained, bool):
            raise RecipeError("this is true or false", where="[engine] keep_trained", found=repr(keep_trained))
        policy = Policy.read(Path(self.recipe.policy)) if self.recipe.policy else Policy()
        store, ledger = PrivateStore(self.out / "clients"), Ledger(self.out / "ledger.jsonl")
        population = FlippedLabels.among(self.population(), self.task, self.recipe)
        worker = make_worker(self, population, store, ledger, policy)
        if keep_trained:
            worker.trained = TrainedModels(self.out / TRAINED, (1, self.recipe.round.rounds))
        return worker


def make_worker(
    job: Job,
    population: Population,
    store: PrivateStore,
    ledger: Ledger,
    policy: Policy,
    budget: Budget | None = None,
) -> Worker:
    """`budget` is what a site has for all jobs on the same data."""
    recipe = job.recipe
    worker = Worker(
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
        memory=round(recipe.data.memory * 1e9),
        discretion=make_discretion(recipe, job.out, budget),
        transfer=recipe.transfer,
    )
    if recipe.secure.sums:
        from fedreel.core.secure.work import simulated_sums

        worker.sums = simulated_sums(recipe.secure, job.run_id, job.out)
    return worker


def make_server_training(job: Job, what: Supervision, share: float, examples: Examples) -> ServerTraining:
    """What trains at the server, on its own examples."""
    recipe = job.recipe
    objective = able(job.task, Contrastable).server_objective(what, examples, share)
    return ServerTraining(objective, recipe.server or recipe.train, recipe.round.rounds, recipe.seed, job.device)


def make_task(recipe: Recipe) -> Task:
    return _make(recipe.task, TASKS.lookup(recipe.task["name"]), "task")


def make_method(recipe: Recipe) -> Method:
    method: Method = _make(recipe.method, METHODS.lookup(recipe.method["name"]), "method")
    if recipe.server is not None and not method.trains_server:
        raise RecipeError(
            f"with {recipe.method['name']} the server does not train",
            where="[server]",
            expected="no such section",
            hint="take it out, or choose a method such as fedlid",
        )
    check_together(recipe, method)
    return method


def check_fit(task: Task, method: Method) -> None:
    """Raise, before any data are read, if the method needs what the task cannot do."""
    for ability in method.needs:
        if not isinstance(task, ability):
            able_tasks = [name for name in TASKS.names() if issubclass(TASKS.lookup(name), ability)]
            raise RecipeError(
                f"{type(method).__name__} needs a task that {ability.says}, and {type(task).__name__} does not",
                where="[method] name",
                expected=f"the task {' or '.join(able_tasks)}" if able_tasks else "",
                hint="fedreel list methods says what each method needs",
            )
    _check_tuning(task, method)
    method.check(task)


def _check_tuning(task: Task, method: Method) -> None:
    """Raise if of this task's model nothing would be left for the method to do."""
    if task.tune not in method.tunes:
        raise RecipeError(
            f"{type(method).__name__} is about tensors that are not trained here",
            where="[task.backbone] tune",
            expected=" or ".join(method.tunes),
            found=task.tune,
        )
    head, body = (TensorInfo(f"{part}.fc.weight", (1,), torch.float32, part=part) for part in ("head", "backbone"))
    travels = [method.travels(t) and not task.own(t) for t in (head, body)]
    if task.tune == "head" and travels == [False, True]:
        raise RecipeError(
            "only the head is trained, and the head stays with its client: nothing would travel",
            where="[task.backbone] tune",
            expected="all, norm or lora",
            found="head",
            hint="let the head travel: method.local_head, or task.own_classifier of skeletons, or another method",
        )


def resolved(recipe: Recipe, task: Task, method: Method) -> Recipe:
    """The recipe with every setting of its task and method written out: a later default does not change it."""
    return replace(
        recipe,
        task={"name": recipe.task["name"], **settings_of(task)},
        method={"name": recipe.method["name"], **settings_of(method)},
    )


def _make(table: dict[str, Any], cls: type, section: str) -> Any:
    return build(cls, {k: v for k, v in table.items() if k != "name"}, f"[{section}] {table['name']}")
