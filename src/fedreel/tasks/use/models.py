"""The model that a verb uses: whether the run fits the verb, and whose part of it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreel.core.assessment import model_for
from fedreel.core.server import GLOBAL
from fedreel.core.state import PrivateStore
from fedreel.data.features import Features, make_features, same_features
from fedreel.errors import FedreelError, RecipeError, RunError, nearest
from fedreel.machine.records import parse_json
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import Loaded, load
from fedreel.systems import Verb, find_system, tasks_with

OTHER_FEATURES = (
    "they came with the training data: give the Python function an object that makes them (features=), or train on the"
    " videos themselves, with task.features = plain, efficientnet-lite0 or run:FOLDER"
)


def read_card(run: Path) -> dict[str, Any]:
    """A model's card, without the model."""
    folder = run / "model" if (run / "model").is_dir() else run
    try:
        card: dict[str, Any] = parse_json((folder / "card.json").read_text())
        return {**card, "task": str(card["task"]), "private": [*card["private"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            "this is not a finished run or model folder",
            where=str(run),
            found=f"{type(error).__name__}: {error}",
            hint="give the folder that `fedreel run --out` wrote",
        ) from error


def declared_verb(run: Path, verb: str, does: str) -> Verb:
    """The verb, as the run's task declares it. Raises if it does not: which tasks do, and what this one is for."""
    task = read_card(run)["task"]
    system = find_system(task)
    declared = system.verb(verb) if system else None
    if declared is not None:
        return declared
    uses = [f"fedreel {use.name}" for use in system.verbs if use.trained] if system else []
    raise RunError(
        f"this run's model does not {does}",
        where=str(run),
        expected=f"a run of the task {_one_of(tasks_with(verb))}",
        found=task,
        hint=f"use {_one_of(uses)}" if uses else "fedreel.load gives its model to Python programs",
    )


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def load_for(run: Path, client: str, device: str) -> tuple[Loaded, str]:
    """The model for use, with the private part of the client where there is one; and who that is. Where all clients
    share the model, nobody need be named."""
    loaded = load(run, device=device)
    clients = known_clients(run, partition_record(run))
    if loaded.card["private"] and not client:
        hint = "a part of this model never left the clients, and each has one of its own"
        client = only_client(run, clients, hint)
    if client:
        _check_client(run, client, clients, loaded.card)
    model = model_for(loaded.card, client)
    if client or model != GLOBAL:
        loaded = load(run, model=model, client=client, device=device)
    return loaded, client


def partition_record(run: Path) -> dict[str, Any]:
    """What the run noted of its clients and their data when it began; nothing of a model without its run."""
    try:
        return next(read_metrics(run, "partition"), {})
    except OSError:
        return {}


def known_clients(run: Path, record: dict[str, Any]) -> list[str]:
    """The clients of a run, as far as it tells."""
    return [*(record.get("sets") or record.get("train") or PrivateStore(run / "clients").clients())]


def only_client(run: Path, clients: Sequence[str], hint: str) -> str:
    """The client of a run that has just one; of several, the user must name one."""
    if len(clients) == 1:
        return clients[0]
    raise RunError(
        "it is not clear whose model is meant",
        where=str(run),
        expected="the name of a client: --client NAME",
        found=f"clients {', '.join(clients)}" if clients else "no record of clients beside this model",
        hint=hint,
    )


def _check_client(run: Path, client: str, known: Sequence[str], card: dict[str, Any]) -> None:
    """Raise unless the client is one of the run's, where the run tells, and its part of the model is trained."""
    if known and client not in known:
        raise RunError(f"this run has no client '{client}'", where=str(run), hint=nearest(client, known))
    if not card["private"] or card["recipe"].get("engine", {}).get("name") == "flower":
        return  # nothing is the client's own, or it stayed at a real site: loading says so
    store = PrivateStore(run / "clients")
    if not any(name.startswith("model/") for name in store.newest(client).tensors):
        trained = [name for name in store.clients() if name != client]
        raise RunError(
            f"the part of client '{client}' has never been trained",
            where=str(run),
            expected="a client that took part in a round",
            found=f"trained are {', '.join(trained)}" if trained else "no client's tensors in the run's folder",
        )


def trained_features(card: dict[str, Any], run: Path, given: Features | None = None) -> Features:
    """What makes the features that the model was trained on: those given, or by the name in the model's card."""
    wanted = card["input"]["features"]
    needed = f"{wanted['name']}, {wanted['width']} numbers a step"
    try:
        features = given or make_features(card["recipe"]["task"].get("features", wanted["name"]))
    except FedreelError as error:
        raise RunError(
            "the features that the model was trained on cannot be made from a video here",
            where=str(run),
            expected=needed,
            found=" ".join(text for text in (error.problem, error.found) if text),
            hint=OTHER_FEATURES if isinstance(error, RecipeError) else error.hint,
        ) from error
    own = features.card()
    if not same_features(wanted, own):
        differ = [key for key in own if wanted.get(key) not in ("", None, own[key]) and own[key] not in ("", None)]
        raise RunError(
            "the features are not those that the model was trained on",
            where=str(run),
            expected=", ".join([needed, *(f"{key} {wanted[key]}" for key in differ if key not in ("name", "width"))]),
            found=", ".join(f"{key} {own[key]}" for key in differ),
            hint="the same package, or the same run, must make the features as in training",
        )
    return features
