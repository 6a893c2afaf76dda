"""Engine conformance: every registered method and task, and methods that use every way of talking, end on every
registered engine as on `local`, to the bit: on Flower's Ray simulation, and at sites. All of them are sent to sites as
frames, which are answered in this process; some of them at real sites: see test_sites_end_to_end. Every task's data
count the memory that they take, and a run does not depend on how much there is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedreel.core.job import make_method, make_task
from fedreel.core.residence import Residence
from fedreel.errors import RunError
from fedreel.registry import ENGINES, TASKS
from fedreel.runs.reading import read_metrics
from fedreel.runs.run import run
from support.conformance_engines import Stage, all_here, assert_same_end, local, stage, summary
from support.conformance_jobs import CACHED, CASES, NEEDS_ALL_DATA, NEEDS_CLOCK, SMALL_TASKS, recipe_of, write_data
from support.flower_site import toy_recipe
from support.reachable import tensors_in
from support.synthetic import Held
from support.toy import Toy

pytest.importorskip("flwr", reason="needs the extra `flower`")

ROUNDED = {"vector"}  # engines that promise the numbers of `local` up to rounding
TALK = ("chains", "questions", "several-models", "private-state", "fedca-image", "fedlid-image")
SUMMED = ("secure", "secure-private")
TRAINED = ("head", "lora", "mae-lora", "fedvmr-qd-detr")  # parts of networks, and what is seen once
LATE = ("fedasync", "fedbuff")  # orders that outlast their rounds
FRAMES = "flower, frames"
FEW = {
    "streams": TALK + TRAINED + SUMMED + LATE,
    "vector": TALK + TRAINED + SUMMED + LATE + ("scaffold", "moon", "fsar", "task-summary", "task-moments"),
    "processes": TALK + TRAINED + SUMMED + ("scaffold", "moon", "cfedvs-summary", "task-summary", "centralised", *LATE),
    "auto": ("private-state",),
}  # they share all but their scheduling with `local`
PAIRS = [
    (engine, name)
    for engine in (FRAMES, *ENGINES)
    for name in FEW.get(engine, CASES)
    if engine not in ("local", "flower") and not (engine == FRAMES and name in NEEDS_ALL_DATA | NEEDS_CLOCK)
]

Stages = Callable[[str], Stage]


@pytest.fixture(scope="module")
def small(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tasks' small data."""
    return write_data(tmp_path_factory.mktemp("conformance"))


@pytest.fixture(scope="module")
def stages(small: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Each engine's stage, started when it is first asked for. Its jobs are those of the tests that were chosen."""
    torch.set_num_threads(1)
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    chosen = [item.callspec.params for item in items]  # type: ignore[attr-defined]
    pairs = [(given.get("engine", FRAMES), given["name"]) for given in chosen if "name" in given]
    pairs = [(engine, name) for engine, name in pairs if CASES[name].able]
    running = {"local": local(small, tmp_path_factory.mktemp("local"))}
    with ExitStack() as stack:

        def start(engine: str) -> Stage:
            if engine not in running:
                rounds = {name: summary(running["local"](name))["rounds"] for its, name in pairs if its == engine}
                out = tmp_path_factory.mktemp(engine) / "out"
                running[engine] = stack.enter_context(stage(engine, small, out, rounds))
            return running[engine]

        yield start


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_an_engine_ends_as_local_does(engine: str, name: str, stages: Stages) -> None:
    if not CASES[name].able:
        pytest.skip(f"needs the package {CASES[name].needs}")
    assert_same_end(stages("local")(name), stages(engine)(name), 1e-4 if engine in ROUNDED else 0.0)


@pytest.mark.parametrize("name", sorted(CACHED))
def test_what_lies_in_the_cache_decides_how_a_run_ends(name: str, stages: Stages) -> None:
    """So an engine that ends as `local` did with false features has not looked at the clips itself."""
    believed = stages("local")(name)
    honest = believed.run.parent / "honest" / name / "model" / "global.safetensors"
    assert (believed.run / "model" / "global.safetensors").read_bytes() != honest.read_bytes()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores for two clients at once")
def test_with_four_groups_a_client_waits_only_for_its_own_predecessor(stages: Stages, tmp_path: Path) -> None:
    """The first client of one group begins only after the last of another has ended: were groups in step, for ever."""
    stages("flower-sim")
    clients = [f"c{i}" for i in range(8)]
    order = np.random.default_rng([0, 0xF1]).permutation(8)
    groups = [[clients[i] for i in part] for part in np.array_split(order, 4)]
    settings: dict[str, Any] = {"folder": str(tmp_path), "held": groups[0][0], "until": groups[1][1]}
    task, method = {"name": "toy", "clients": 8}, {"name": "held", "groups": 4, **settings}
    recipe = toy_recipe(rounds=1, engine={"name": "flower-sim"}, task=task, method=method)
    run(recipe, tmp_path / "run", quiet=True, task=Toy(clients=8), method=Held(groups=4, **settings))
    (drawn,) = read_metrics(tmp_path / "run", "groups")
    assert drawn["groups"] == groups
    ended = {name: (tmp_path / name).stat().st_mtime_ns for name in clients}
    assert ended[groups[1][1]] < ended[groups[0][0]] < ended[groups[0][1]]


@pytest.mark.parametrize("name", sorted(NEEDS_ALL_DATA))
def test_a_method_that_needs_all_data_says_so_at_sites(name: str, stages: Stages) -> None:
    with pytest.raises(RunError, match="this method needs all data in one place"):
        stages(FRAMES)(name)


@pytest.mark.parametrize("task", SMALL_TASKS)
def test_a_clients_data_count_the_memory_that_is_theirs_alone(task: str, small: Path) -> None:
    """All tensors within reach of a client's examples, but those that are within every client's."""
    recipe = recipe_of(CASES[f"task-{task}"], small, {"name": "local"}, 1)
    made = make_task(recipe)
    residence, population, model = Residence(torch.device("cpu"), 10**9), made.population(recipe.data, 0), made.model()
    counted, reached = {}, {}
    for client in population.clients:
        data = residence.of_client(client, population, made, model)
        for part in ("train", "test"):
            before = residence.used
            reached[client, part] = tensors_in(getattr(data, part))
            counted[client, part] = residence.used - before
    holders = Counter(place for found in reached.values() for place in found)
    for key, found in reached.items():
        assert counted[key] == sum(size for place, size in found.items() if holders[place] == 1) > 0, key


@pytest.mark.parametrize("task", SMALL_TASKS)
def test_data_that_leave_memory_change_nothing(
    task: str, small: Path, stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one byte, whoever is worked with is there alone, or streams."""
    expected, made = stages("local")(f"task-{task}"), list[Residence]()
    monkeypatch.setattr("fedreel.core.client.Residence", lambda *given: made.append(Residence(*given)) or made[-1])
    recipe = recipe_of(CASES[f"task-{task}"], small, {"name": "local"}, summary(expected)["rounds"])
    recipe = replace(recipe, data=replace(recipe.data, memory=1e-9))
    run(recipe, tmp_path / "run", quiet=True, task=make_task(recipe), method=make_method(recipe))
    assert [residence.budget for residence in made] == [1]
    assert len(made[0].held) <= 1
    assert_same_end(expected, all_here(tmp_path / "run"))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_among_the_cases(task: str) -> None:
    assert task in SMALL_TASKS, (
        f"the engines are not tested with the task '{task}': write tests/tasks/{task}/conformance.py with "
        "settings(folder) and write(folder, clients), as tests/tasks/skeleton/conformance.py has them"
    )
