"""The jobs of the conformance suite: every registered method and task, and methods made to use every way of talking.

As a program it runs jobs at the sites of a server, several at once: JSON on stdin, one line for each job on stdout."""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from fedreel.config import DataConfig, Recipe, RoundConfig, TrainConfig
from fedreel.core.job import Job, make_method, make_task, resolved
from fedreel.registry import METHODS, TASKS
from fedreel.runs.run import run
from support import synthetic
from support.toy import Toy

SYNTHETIC = {
    "chains": synthetic.Chains,
    "questions": synthetic.Questions,
    "several-models": synthetic.SeveralModels,
    "private-state": synthetic.PrivateState,
}


@dataclass(frozen=True)
class Case:
    """A small job. The toy task stands in where a method can run any task."""

    method: str
    task: str = "toy"
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    task_settings: dict[str, Any] = field(default_factory=dict)
    rounds: int = 2
    evaluate_every: int = 0
    keep_optimizer: bool = False


R3D = {"name": "r3d", "width": 2, "blocks": [1, 1, 1, 1]}
RESNET = {"name": "resnet10", "width": 2, "small_stem": True}
STGCN = {"name": "stgcn", "width": 4, "features": 8}
LEARNABLE = {**STGCN, "topology": "learnable"}
TASK_SETTINGS: dict[str, dict[str, Any]] = {
    "recognition": {"classes": 2, "backbone": R3D, "size": 16, "frames": 4},
    "summary": {"features": "own", "width_in": 6, "width": 8, "blocks": 1, "hidden": 4, "fps": 2.0},
    "moments": {"features": "own", "width_in": 3, "length": 8, "width": 8, "word_width": 4, "vocabulary": 40},
    "skeleton": {"joints": "kinect-v1", "classes": 3, "backbone": STGCN, "length": 12, "bodies": 1},
    "pretrain": {"backbone": R3D, "size": 16, "frames": 4},
    "image": {"classes": 3, "backbone": RESNET, "size": 16, "embedding": 4},
}
REMEMBERED = ("fedca", "moon", "fedu", "fedbn", "fedvssl", "local-only")  # what clients kept in round 1 matters
CASES = {
    **{name: Case(name, rounds=2 if name in REMEMBERED else 1) for name in METHODS},
    **{name: Case(name, evaluate_every=2) for name in SYNTHETIC},
    "private-state": Case("private-state", rounds=3, keep_optimizer=True, evaluate_every=3),
    **{f"task-{name}": Case("fedavg", name, {}, TASK_SETTINGS[name], evaluate_every=2) for name in TASKS},
    "cfedvs-summary": Case("cfedvs", "summary", {"groups": 2}, TASK_SETTINGS["summary"]),
    "fedvmr-moments": Case("fedvmr", "moments", {"groups": 2}, TASK_SETTINGS["moments"], evaluate_every=2),
    "task-image": Case("fedavg", "image", {}, TASK_SETTINGS["image"]),  # each site tests on the images it has
    "fedlid-image": Case("fedlid", "image", {}, TASK_SETTINGS["image"]),
    "fedca-image": Case("fedca", "image", {"public": 4}, {**TASK_SETTINGS["image"], "objective": "views"}),
    "fsar": Case("fsar", "skeleton", {}, {**TASK_SETTINGS["skeleton"], "backbone": LEARNABLE}, evaluate_every=2),
}
NEEDS_ALL_DATA = {"centralised"}  # cannot run at real sites, and says so


def recipe_of(case: Case, data: Path, engine: dict[str, Any]) -> Recipe:
    role = {"toy": "toy", "recognition": "videos", "pretrain": "videos"}.get(case.task, case.task)
    words = {"words": str(data / "words.txt")} if case.task == "moments" else {}  # sites must agree on them
    return Recipe(
        system="conformance",
        device="cpu",
        seed=3,
        task={"name": case.task, **case.task_settings, **words},
        method={"name": case.method, **case.settings},
        engine=engine,
        data=DataConfig(source=str(data / role), role=role, public=str(data / role)),
        train=TrainConfig(batch_size=4, lr=0.1, momentum=0.9, keep_optimizer=case.keep_optimizer),
        round=RoundConfig(rounds=case.rounds, evaluate_every=case.evaluate_every, fraction=0.75, min_answers=1.0),
    )


def objects(recipe: Recipe) -> tuple[Any, Any]:
    """Task and method of a recipe; the tests' own are not registered in this process."""
    task = Toy() if recipe.task["name"] == "toy" else make_task(recipe)
    own = SYNTHETIC.get(recipe.method["name"])
    return task, own() if own else make_method(recipe)


def run_case(name: str, data: Path, out: Path, engine: dict[str, Any]) -> None:
    recipe = recipe_of(CASES[name], data, engine)
    task, method = objects(recipe)
    run(recipe, out, quiet=True, task=task, method=method)


def job_of(name: str, data: Path, out: Path, engine: dict[str, Any]) -> Job:
    recipe = recipe_of(CASES[name], data, engine)
    task, method = objects(recipe)
    return Job(resolved(recipe, task, method), task, method, torch.device("cpu"), out)


def main() -> None:
    """Fork a child for each job, at most `at_once` at a time."""
    torch.set_num_threads(1)
    for name in METHODS:
        METHODS.lookup(name)  # imports are paid once
    order = json.loads(sys.stdin.read())
    running: dict[int, str] = {}
    waiting = list(order["jobs"])
    while waiting or running:
        while waiting and len(running) < order["at_once"]:
            name = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(_child(name, order))
            running[pid] = name
        pid, status = os.wait()
        print(json.dumps({"job": running.pop(pid), "code": os.waitstatus_to_exitcode(status)}), flush=True)


def _child(name: str, order: dict[str, Any]) -> int:
    out = Path(order["out"]) / name
    try:
        run_case(name, Path(order["data"]), out, {"name": "flower", "server": order["server"]})
        return 0
    except Exception:
        Path(f"{out}.error").write_text(traceback.format_exc())
        return 1


if __name__ == "__main__":
    main()
