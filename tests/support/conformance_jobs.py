"""The jobs of the conformance suite: every registered method and task, and methods made to use every way of talking.

As a program it runs jobs at the sites of a server, several at once: JSON on stdin, one line for each job on stdout."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from fedreel.config import (
    DataConfig,
    PrivacyConfig,
    Recipe,
    RoundConfig,
    SecureConfig,
    TrainConfig,
    TransferConfig,
    WorldConfig,
)
from fedreel.core.job import make_method, make_task
from fedreel.engines.flower import engine
from fedreel.engines.flower.link import Link
from fedreel.engines.flower.server import Server
from fedreel.registry import METHODS, TASKS
from fedreel.runs.run import run
from support import synthetic
from support.toy import Toy

SYNTHETIC = {
    "chains": synthetic.Chains,
    "questions": synthetic.Questions,
    "several-models": synthetic.SeveralModels,
    "private-state": synthetic.PrivateState,
    "lossy": synthetic.Lossy,
}
SITES = {"ward": ("c0", "c3"), "lab": ("c1",), "home": ("c2",)}
TEN = {"ward": ("c0", "c3", "c4", "c5"), "lab": ("c1", "c6", "c7"), "home": ("c2", "c8", "c9")}  # the role `ten`
CLIENTS = tuple(sorted(client for clients in SITES.values() for client in clients))


@dataclass(frozen=True)
class Case:
    """A small job. The toy task stands in where a method can run any task."""

    method: str
    task: str = "toy"
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    task_settings: dict[str, Any] = field(default_factory=dict)  # beside those of the task's conformance.py
    rounds: int | None = 2  # None: a second only if clients keep something in the first
    evaluate_every: int = 0
    keep_optimizer: bool = False
    needs: str = ""  # a package of an extra
    transfer: TransferConfig | None = None
    secure: bool = False  # by secure sums
    privacy: PrivacyConfig | None = None
    role: str = ""  # of the data, if it is not the task's name
    batch_size: int = 4

    @property
    def able(self) -> bool:
        return not self.needs or find_spec(self.needs) is not None


_RESNET = {"name": "resnet10", "width": 2, "small_stem": True}
_LORA = {**_RESNET, "tune": "lora", "lora": {"rank": 1, "alpha": 1.0}}
_FRAMES = {"name": "frames", "image": _RESNET, "tune": "head", "grid": 2}
_VIDEOMAE = {"name": "videomae", "width": 6, "depth": 1, "heads": 1, "mlp": 6, "patch": 8, "tubelet": 2}
_VIDEOMAE |= {"tune": "lora", "lora": {"rank": 1, "alpha": 1.0}}
_NOISE = PrivacyConfig(noise=2.0)
_PARTS = PrivacyConfig(noise=2.0, sampling="known", tests="off")  # which clients make
_EXAMPLES = PrivacyConfig(unit="example", epsilon=8.0)
SMALL_TASKS = [name for name in TASKS if find_spec(f"tasks.{name}.conformance")]
CASES = {
    **{name: Case(name, rounds=None) for name in METHODS},
    "fedasync": Case("fedasync", settings={"in_flight": 3}, rounds=5, evaluate_every=2),
    "fedbuff": Case("fedbuff", settings={"in_flight": 3, "buffer": 2}, rounds=4, evaluate_every=2),
    **{name: Case(name, evaluate_every=2) for name in SYNTHETIC if name != "lossy"},
    "private-state": Case("private-state", rounds=3, keep_optimizer=True, evaluate_every=3),
    **{f"task-{name}": Case("fedavg", name, evaluate_every=2) for name in SMALL_TASKS},
    "cfedvs-summary": Case("cfedvs", "summary", {"groups": 2}),
    "fedvmr-moments": Case("fedvmr", "moments", {"groups": 2}, evaluate_every=2),
    "fedvmr-qd-detr": Case(
        "fedvmr", "moments", {"groups": 2}, {"form": "qd-detr", "encoder": "attention"}, evaluate_every=2
    ),
    "task-image": Case("fedavg", "image"),  # each site tests on the images it has
    "fedlid-image": Case("fedlid", "image"),
    "fedca-image": Case("fedca", "image", {"public": 4}, {"objective": "views"}),
    "head": Case("fedavg", "recognition", {}, {"head": "changes", "backbone": _FRAMES}, evaluate_every=2),
    "mae-lora": Case("fedvssl", "pretrain", {}, {"pretext": "mae", "backbone": _VIDEOMAE}, needs="transformers"),
    "lora": Case("fedper", "image", {}, {"backbone": _LORA}),
    "lora-fedlid": Case("fedlid", "image", {}, {"backbone": _LORA}),
    "fsar": Case(
        "fsar",
        "skeleton",
        {},
        {"backbone": {"name": "stgcn", "width": 4, "features": 8, "topology": "learnable"}},
        evaluate_every=2,
        batch_size=6,  # batch norms of fewer moves make rounding a thousand times as large
    ),
    "int8": Case("fedbn", rounds=3, evaluate_every=1, transfer=TransferConfig(up="int8", down="changes")),
    "top-k": Case("scaffold", rounds=3, transfer=TransferConfig(up="top-k", keep=0.2)),
    "secure": Case("scaffold", evaluate_every=2, needs="cryptography", secure=True),
    "secure-private": Case("fedbn", rounds=3, keep_optimizer=True, needs="cryptography", secure=True),
    "private": Case("fedbn", needs="dp_accounting", privacy=_NOISE, evaluate_every=2),
    "private-examples": Case(
        "fedavg", "recognition", {}, {"head": "linear", "backbone": _FRAMES}, needs="dp_accounting", privacy=_EXAMPLES
    ),
    "secure-noise": Case("fedbn", needs="dp_accounting", secure=True, privacy=_PARTS),
    "secure-lossy": Case(
        "lossy", "toy", {"most": 2}, {"clients": 10}, rounds=11, needs="cryptography", secure=True, role="ten"
    ),
}
CACHED = {"head"}  # what the backbone sees of clips lies on the owner's disk
NEEDS_ALL_DATA = {"centralised"}  # cannot run at real sites, and says so
NEEDS_CLOCK = {"fedasync", "fedbuff"}  # likewise


def write_data(root: Path, *tasks: str) -> Path:
    """The tasks' data (all tasks', if none is named), a folder each, with all clients; and the same divided among the
    sites, a folder each."""
    for place, clients in (("", CLIENTS), *SITES.items()):
        (root / place / "toy").mkdir(parents=True)
        (root / place / "toy" / "clients.txt").write_text(" ".join(clients))
        (root / place / "ten").mkdir()
        ten = TEN.get(place) or sorted(client for some in TEN.values() for client in some)
        (root / place / "ten" / "clients.txt").write_text(" ".join(ten))
        for task in tasks or SMALL_TASKS:
            _small(task).write(root / place / task, clients)
    return root


def recipe_of(case: Case, data: Path, engine: dict[str, Any], rounds: int) -> Recipe:
    role = case.role or case.task
    folder = data / role
    settings = {} if case.task == "toy" else _small(case.task).settings(folder)
    late = case.method in NEEDS_CLOCK
    share = 1.0 if case.secure or late else 0.75  # of three clients, two may be of one site
    needed = 0.5 if late else 1.0
    return Recipe(
        system="conformance",
        device="cpu",
        seed=3,
        task={"name": case.task, **settings, **case.task_settings},
        method={"name": case.method, **case.settings},
        engine=engine,
        data=DataConfig(source=str(folder), role=role, public=str(folder)),
        train=TrainConfig(batch_size=case.batch_size, lr=0.1, momentum=0.9, keep_optimizer=case.keep_optimizer),
        round=RoundConfig(rounds=rounds, evaluate_every=case.evaluate_every, fraction=share, min_answers=needed),
        secure=SecureConfig(sums=case.secure),
        transfer=case.transfer,
        privacy=case.privacy and replace(case.privacy, seeded=engine["name"] != "flower"),  # sites take no other
        world=WorldConfig(drop=0.2) if late else None,
    )


def run_case(case: Case, data: Path, out: Path, engine: dict[str, Any], rounds: int) -> None:
    """The tests' own task and methods are not registered in this process."""
    recipe = recipe_of(case, data, engine, rounds)
    settings = {key: value for key, value in recipe.task.items() if key != "name"}
    task = Toy(**settings) if recipe.task["name"] == "toy" else make_task(recipe)
    own = SYNTHETIC.get(recipe.method["name"])
    run(recipe, out, quiet=True, task=task, method=own(**case.settings) if own else make_method(recipe))


def _small(task: str) -> Any:
    return importlib.import_module(f"tasks.{task}.conformance")


class Lent:
    """What jobs use one after another, as one of them sees it."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)

    def close(self) -> None:
        """The next job needs it."""


def main() -> None:
    """Carry the jobs out in `at_once` processes. `jobs` says of each how many rounds it has. A process that cannot lay
    its line to the server ends us with its reason: nobody may wait for jobs that nobody does."""
    torch.set_num_threads(1)
    for name in METHODS:
        METHODS.lookup(name)  # imports are paid once
    order = json.loads(sys.stdin.read())
    for case in (CASES[name] for name in order["jobs"] if CASES[name].needs):
        make_task(recipe_of(case, Path(order["data"]), {"name": "local"}, 1)).model()  # imports another library
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(order["at_once"], fork, _lay_line, (order["server"],)) as pool:
        jobs = {pool.submit(_job, name, order): name for name in order["jobs"]}
        for job in as_completed(jobs):
            print(json.dumps({"job": jobs[job], "code": job.result()}), flush=True)


def _lay_line(server: str) -> None:
    """One line to the server for all jobs of a process: to lay it takes longer than most of them."""
    link = Link(Server(Path(server)).flower_home, silence=30.0, wait=300)
    mock.patch.object(engine, "Link", return_value=Lent(link)).start()


def _job(name: str, order: dict[str, Any]) -> int:
    out = Path(order["out"]) / name
    try:
        run_case(
            CASES[name], Path(order["data"]), out, {"name": "flower", "server": order["server"]}, order["jobs"][name]
        )
        return 0
    except Exception:
        Path(f"{out}.error").write_text(traceback.format_exc())
        return 1


if __name__ == "__main__":
    main()
