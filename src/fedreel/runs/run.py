"""From a recipe to a run directory: builds task, method and engine, lets the method run, writes what came of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedreel import __version__
from fedreel.config import Recipe, as_table, make_recipe
from fedreel.core.abilities import Accountable
from fedreel.core.aggregate import Average
from fedreel.core.assessment import Assessment, assess
from fedreel.core.attack import attacked
from fedreel.core.blueprint import Blueprint
from fedreel.core.engine import Engine
from fedreel.core.federation import Federation
from fedreel.core.job import Job, check_fit, make_method, make_server_training, make_task, resolved
from fedreel.core.method import Method
from fedreel.core.pool import plainly, told
from fedreel.core.privacy import check_private, make_disclosure
from fedreel.core.round_stats import waiting_share
from fedreel.core.secure.rules import check_sums
from fedreel.core.server import GLOBAL, ServerState, Watcher
from fedreel.core.state import TRAINED, PrivateStore, TrainedModels
from fedreel.core.task import Task
from fedreel.core.world import check_clock, make_world
from fedreel.errors import RecipeError, RunError, nearest
from fedreel.machine.device import pick_device
from fedreel.machine.files import new_folder
from fedreel.machine.records import parse_json
from fedreel.registry import ENGINES
from fedreel.runs.frozen import frozen_card, load_frozen, save_frozen, warn_of_random
from fedreel.runs.now import Now
from fedreel.runs.progress import ProgressLine
from fedreel.runs.reading import read_summary
from fedreel.runs.rundir import RunDir, check_place, recipe_of, room_to_write
from fedreel.runs.track import find_trackers
from fedreel.zoo import find_model

TRUST = "trust.safetensors"  # beside a model: what the samples look like that it learned from


@dataclass(frozen=True)
class Result:
    """A finished run."""

    path: Path
    summary: dict[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        return self.summary["metrics"]


def run(
    recipe: Recipe,
    out: Path | str,
    *,
    resume: bool = False,
    quiet: bool = False,
    task: Task | None = None,
    method: Method | None = None,
    watching: Sequence[Callable[[Path], Watcher]] = (),
) -> Result:
    """Run a recipe into the folder `out`, all but its report, which `fedreel.api.run` adds. `task` and `method` may be
    given as objects, registered or not; `watching` are further watchers, made when the folder has its files."""
    out = Path(out)
    device = pick_device(recipe.device)
    task, method = task or make_task(recipe), method or make_method(recipe)
    check_fit(task, method)
    check_sums(recipe, task, method)
    check_clock(recipe, method)
    warn_of_random(task)
    start_engine = engine_starter(recipe)
    if check_place(out, resume):  # before long work on the data
        task = _as_before(task, out)
    task = task.for_data(recipe.data, here=not getattr(ENGINES.lookup(recipe.engine["name"]), "at_sites", False))
    recipe = resolved(recipe, task, method)
    with room_to_write(out), closing(RunDir(out, recipe, resume=resume)) as folder:
        if folder.complete:
            return Result(out, read_summary(out))
        job = Job(recipe, task, method, device, out, folder.id, folder.start)
        trackers = [*find_trackers(recipe.track), *watching]
        title, rounds = recipe.system or recipe.method["name"], recipe.round.rounds
        with closing(start_engine(job)) as started, folder.writing(), closing(Now(out, rounds)) as now:
            engine = attacked(started, recipe)
            check_private(recipe, method, engine.blueprint)
            progress = folder.begin(device, engine.blueprint.digest, _conditions(engine))
            now.write()
            with nullcontext() if quiet else ProgressLine(title, rounds) as line:
                # the folder's round_done is the commit: last, so that all else of the round is written before it
                watchers: list[Watcher] = [*(make(out) for make in trackers), *([line] if line else []), now, folder]
                disclosure = make_disclosure(recipe, task, len(engine.clients), out)
                fed = Federation(
                    engine,
                    method,
                    recipe.round,
                    recipe.seed,
                    watchers=watchers,
                    progress=progress,
                    public=lambda: task.public(recipe.data, recipe.data.seed),
                    training=lambda what, share, own: make_server_training(job, what, share, own),
                    disclosure=disclosure,
                    transfer=recipe.transfer,
                    sums=_sums(job, engine),
                    world=make_world(recipe.world, recipe.seed, engine.describe(), recipe.train.epochs),
                )
                _introduce(fed, disclosure.of_partition(engine.describe()), folder, getattr(started, "why", ""))
                method.run(fed)
                folder.settle()
                trust = _assessed(job, engine, fed)
            _save_model(job, engine.blueprint, fed, trust)
            summary = _summary(job, started, fed.progress, trust, disclosure.of_round())
            folder.write_json("summary.json", summary)
        return Result(out, summary)


def _conditions(engine: Engine) -> dict[str, str]:
    """What a run's numbers depend on beside its recipe."""
    clients = json.dumps([engine.clients, engine.describe()], sort_keys=True, default=plainly)
    data = hashlib.sha256(clients.encode()).hexdigest()[:12]
    return {"fedreel": __version__, "torch": torch.__version__, "clients and how many samples they have": data}


def _introduce(fed: Federation, described: dict[str, Any], folder: RunDir, why: str) -> None:
    """What a run says before its first round, or before it goes on; `described` is about the clients' data, `why`
    about an engine that was chosen for it."""
    if fed.round == 0:
        fed.record("partition", **told(described))
        if "attack" in described:
            fed.record("note", text=described["attack"])
    if why:
        fed.record("note", text=why)
    for text in folder.changed:
        fed.record("note", text=f"resumed with something else than before: {text}")


@dataclass(frozen=True)
class Loaded:
    """A trained model, ready to use."""

    model: nn.Module
    task: Task
    card: dict[str, Any]


def load(path: Path | str, *, model: str = GLOBAL, client: str = "", trained: int = 0, device: str = "cpu") -> Loaded:
    """The model of a run (or of its folder `model/`), or one that comes with fedreel, by its name. Tensors that never
    left their clients are as initialised, unless a `client` of the run is named whose private part lies in the run's
    folder: then they are this client's. With a round as `trained`, all are this client's, as it had trained them in
    that round, if that was kept."""
    path = find_model(path)
    folder = path / "model" if (path / "model").is_dir() else path
    try:
        card = parse_json((folder / "card.json").read_text())
        if model not in card["models"]:
            raise RunError(f"there is no model '{model}' here", where=str(folder), hint=nearest(model, card["models"]))
        tensors = load_file(folder / f"{model}.safetensors", device=device)
        recipe = make_recipe(card["recipe"], str(folder / "card.json"))
        task = make_task(recipe if card.get("frozen", {}).get("elsewhere") else _without_init(recipe))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            net = task.model().to(device)
        net.load_state_dict(tensors, strict=False)
        frozen = load_frozen(net, card, folder)
        private = _private(Path(path), client, card["private"]) if client and not trained else {}
        private |= TrainedModels(Path(path) / TRAINED).read(client, trained) if trained else {}
        net.load_state_dict(private, strict=False)
        own = {*net.state_dict()}
        extra, lost = sorted({*tensors} - own), sorted({*card["travelling"]} - {*tensors})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise RunError(
            "this is not a finished run or model folder",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            hint="give the folder that `fedreel run --out` wrote",
        ) from error
    if extra or lost:
        raise RunError(
            "the model file does not hold the tensors that its card promises",
            where=str(folder / f"{model}.safetensors"),
            found=", ".join([f"{n} unexpected" for n in extra[:3]] + [f"{n} missing" for n in lost[:3]]),
        )
    return Loaded(net.eval(), task, {**card, "not_trained": sorted(own - {*tensors} - {*private} - {*frozen})})


def engine_starter(recipe: Recipe) -> Callable[[Job], Any]:
    """What starts the recipe's engine; raises if it does not know a setting."""
    name, settings = recipe.engine["name"], {k: v for k, v in recipe.engine.items() if k != "name"}
    cls = ENGINES.lookup(name)
    known = list(signature(cls.begin).parameters)[1:]
    for key in settings:
        if key not in known:
            raise RecipeError(f"unknown key '{key}'", where=f"[engine] {name}", hint=nearest(key, known))
    if recipe.attack is not None and not getattr(cls, "in_process", False):
        raise RecipeError(
            "attacks are simulated where this machine has all clients and no network is between, and nowhere else",
            where="[attack]",
            expected="the engine auto, local, processes, vector or streams",
            found=name,
            hint="take the section out, or change engine.name",
        )
    if recipe.world is not None and getattr(cls, "at_sites", False):
        raise RecipeError(
            "real sites take the time they take",
            where="[world]",
            expected="an engine that simulates clients",
            found=name,
            hint="take the section out, or change engine.name",
        )
    return lambda job: cls.begin(job, **settings)


def _sums(job: Job, engine: Engine) -> Callable[..., list[Average]] | None:
    """How averages come about where no single update may be seen."""
    if not job.recipe.secure.sums:
        return None
    from fedreel.core.secure.rounds import server_sums

    return server_sums(job, engine.blueprint.travelling, not getattr(engine, "at_sites", False))


def _without_init(recipe: Recipe) -> Recipe:
    """What a finished model began with is not read again: the file may be gone by now."""
    return replace(recipe, task=_emptied(recipe.task))


def _emptied(section: Any) -> Any:
    """Without `init`, nor that of a backbone within it."""
    if not isinstance(section, dict):
        return section
    return {key: "" if key == "init" else _emptied(value) for key, value in section.items()}


def _private(run: Path, client: str, wanted: Sequence[str]) -> dict[str, Tensor]:
    """A client's private part of the model, out of the run's folder."""
    store = PrivateStore(run / "clients")
    kept = store.newest(client).tensors
    tensors = {name: kept[f"model/{name}"] for name in wanted if f"model/{name}" in kept}
    if len(tensors) < len(wanted):
        raise RunError(
            f"the private part of client '{client}' is not here",
            where=str(store.folder),
            hint=nearest(client, store.clients()) + "; at real sites it stays at the site",
        )
    return tensors


def _as_before(task: Task, out: Path) -> Task:
    """The task with what its data told it when the run began: they are not asked again."""
    before = recipe_of(out).task
    unset = [name for name in task.from_data if not getattr(task, name) and name in before]
    return replace(task, **{name: before[name] for name in unset})  # type: ignore[type-var]


def _assessed(job: Job, engine: Engine, fed: Federation) -> Assessment:
    """How far the model is to be trusted, if that is wanted and the task can tell."""
    wanted = job.recipe.round.trust and job.recipe.round.evaluate_every and job.recipe.privacy is None
    if not wanted or not isinstance(job.task, Accountable):
        return Assessment()
    return assess(fed, job.method.card(fed), bool(engine.blueprint.private.tensors), engine.describe())


def _save_model(job: Job, made: Blueprint, fed: Federation, trust: Assessment) -> None:
    recipe, progress = job.recipe, fed.progress
    card = {
        "fedreel": __version__,
        "system": recipe.system,
        "task": recipe.task["name"],
        "method": recipe.method["name"],
        "models": sorted(progress.models),
        "travelling": list(made.travelling.place),
        "private": list(made.private.place),
        "parameters": made.parameters,
        **({"frozen": frozen_card(made, job.task)} if made.digest else {}),
        "metrics": progress.metrics,
        "rounds": progress.round,
        "recipe": as_table(recipe),
        **job.task.card(),
        **job.method.card(fed),
        **({"trust": trust.told()} if trust else {}),
    }
    with new_folder(job.out / "model") as temp:
        for name, weights in progress.models.items():
            save_file({n: t.detach().cpu().contiguous() for n, t in weights.items()}, temp / f"{name}.safetensors")
        save_frozen(made, job.task, temp)
        if trust.tensors():
            save_file(trust.tensors(), temp / TRUST)
        (temp / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def _summary(
    job: Job, engine: Engine, progress: ServerState, trust: Assessment, spent: dict[str, Any]
) -> dict[str, Any]:
    recipe = job.recipe
    return {
        "system": recipe.system,
        "method": recipe.method["name"],
        "task": recipe.task["name"],
        "engine": getattr(engine, "ran", "") or recipe.engine["name"],
        **({"engine_notices": list(notices)} if (notices := getattr(engine, "notices", ())) else {}),
        "device": str(job.device),
        "seed": recipe.seed,
        "rounds": progress.round,
        "clients": len(engine.clients),
        "parameters": engine.blueprint.parameters,
        "wall_seconds": round(progress.totals["seconds"], 3),
        "waiting_for_data": waiting_share(progress.totals),
        "bytes_up": int(progress.totals["bytes_up"]),
        "bytes_down": int(progress.totals["bytes_down"]),
        "metrics": progress.metrics,
        **({"privacy": spent} if spent else {}),
        **({"trust": {k: v for k, v in trust.overall.told().items() if not k.startswith("bins")}} if trust else {}),
        "refused": progress.refused,
        "fedreel": __version__,
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "complete": True,
    }
