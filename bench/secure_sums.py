"""Secure sums against plain ones, with 0, 1 and 3 of 10 clients lost in each phase, on each engine.

    python bench/secure_sums.py [--engines local flower-sim flower] [--lost 0 1 3] [--bits 32]

Every row is one round of a small model: the largest difference between the secure mean and the plain mean of those
whose part is in the sum, and how large it may be: the grid's step times the clients, over the sum of their weights.
`flower` is five sites with two clients each, with TLS. Ends with 1 if a difference is too large, or if a run goes on
that has lost four clients."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreel.config import load_recipe
from fedreel.core.federation import Federation
from fedreel.core.job import Job
from fedreel.core.secure.rounds import server_sums
from fedreel.core.secure.work import PHASES
from fedreel.core.server import Watcher
from fedreel.core.update import TRAIN, Failure, Order, Result
from fedreel.core.weights import Weights
from fedreel.errors import RunError
from fedreel.machine.device import pick_device
from fedreel.methods.fedavg import FedAvg
from fedreel.registry import ENGINES as KNOWN
from flower import CLIENTS, ENGINES, HERE, RECIPE, Sites, environment
from plugin.bulk import Bulk

LOST = ("client04", "client00", "client09", "client02")
PLACES = ("one", "two", "three", "four", "five")
PRESENT = PHASES[:3]  # whoever is lost later has sent its part


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    arguments.add_argument("--lost", type=int, nargs="+", default=[0, 1, 3], choices=range(5))
    arguments.add_argument("--bits", type=int, default=32, choices=(32, 64))
    options = arguments.parse_args()
    sys.path.insert(0, str(HERE / "plugin"))  # where the task is known by its name
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    rows = []
    print(f"{'engine':<12}{'phase':<8}{'lost':>5}{'in the sum':>12}{'difference':>13}{'allowed':>11}")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder)
        absent = {gone: {(TRAIN, client) for client in LOST[:gone]} for gone in range(4)}
        plain = {gone: run(root / f"plain{gone}", "local", lost, None)[0] for gone, lost in absent.items()}
        for engine in options.engines:
            with running(engine, root) as settings:
                for phase in PHASES:
                    for gone in options.lost if phase == PHASES[0] else [n for n in options.lost if n]:
                        out = root / f"{engine}-{phase}-{gone}"
                        rows.append(row(out, engine, phase, gone, plain, settings, options.bits))
    wrong = [r for r in rows if not r["right"]]
    print(json.dumps({"rows": len(rows), "wrong": wrong}))
    sys.exit(bool(wrong))


def row(
    out: Path, engine: str, phase: str, gone: int, plain: dict[int, Weights], settings: dict[str, Any], bits: int
) -> dict[str, Any]:
    lost = {(phase, client) for client in LOST[:gone]}
    told = {"engine": engine, "phase": phase if gone else "-", "lost": gone}
    try:
        found, step = run(out, engine, lost, bits, settings)
    except RunError as error:
        print(f"{engine:<12}{told['phase']:<8}{gone:>5}   the run stops: {str(error).splitlines()[0]}", flush=True)
        return {**told, "right": gone > 3}
    absent = gone if phase in PRESENT else 0
    count = CLIENTS - absent
    allowed = step / 2 + 1e-7  # each client has two samples; and the rounding of float32
    differs = max(float((found[name] - plain[absent][name]).abs().max()) for name in found) if absent in plain else 0.0
    right = gone <= 3 and differs <= allowed
    print(f"{engine:<12}{told['phase']:<8}{gone:>5}{count:>12}{differs:>13.2e}{allowed:>11.2e}", flush=True)
    return {**told, "difference": differs, "allowed": allowed, "right": right}


def run(
    out: Path, name: str, lost: Collection[tuple[str, str]], bits: int | None, settings: dict[str, Any] | None = None
) -> tuple[Weights, float]:
    """One round; the mean, and the grid's step. Without bits, a plain one."""
    out.mkdir()
    text = RECIPE.format(size=1000, rounds=1, clients=CLIENTS, secure=str(bits is not None).lower())
    (out / "job.toml").write_text(text)
    recipe = load_recipe(out / "job.toml", [f"secure.bits={bits}"] if bits else [])
    recipe = replace(recipe, round=replace(recipe.round, min_answers=0.5, repeat=0), engine={"name": name})
    job = Job(recipe, Bulk(1000, CLIENTS), FedAvg(), pick_device("cpu"), out, out.name)
    notes = Notes()
    with start(name, job, settings or {}) as engine:
        made: Any = Losing(engine, lost)
        sums = server_sums(job, engine.blueprint.travelling, name != "flower") if bits else None
        fed = Federation(made, job.method, recipe.round, recipe.seed, watchers=[notes], sums=sums)
        job.method.run(fed)
        return fed.weights, notes.step


class Notes(Watcher):
    """Keeps the grid's step."""

    step = 0.0

    def record(self, round: int, phase: str, values: Any) -> None:
        self.step = values["step"] if phase == "secure" else self.step


class Losing:
    """An engine that loses orders: (question or kind, client)."""

    def __init__(self, inner: Any, lost: Collection[tuple[str, str]]) -> None:
        self.inner, self.lost = inner, lost
        self.gone: deque[Failure] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, order: Order) -> None:
        if (order.question or order.kind, order.client) in self.lost:
            self.gone.append(Failure(*order.key, order.client, "offline", "lost on purpose"))
        else:
            self.inner.submit(order)

    def next(self) -> Result | None:
        return self.gone.popleft() if self.gone else self.inner.next()


@contextlib.contextmanager
def running(engine: str, root: Path) -> Iterator[dict[str, Any]]:
    """What the engine needs, while it is needed."""
    if engine == "flower":
        with Sites(root, names=PLACES) as sites:
            yield {"server": str(sites.server)}
    elif engine == "flower-sim":
        from fedreel.engines.flower.cluster import Simulation

        with contextlib.closing(Simulation()) as simulation:
            yield {"simulation": simulation}
    else:
        yield {}


def start(name: str, job: Job, settings: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """An engine for a job; all jobs share one simulation."""
    if "simulation" not in settings:
        return contextlib.closing(KNOWN.lookup(name).begin(job, **settings))
    return contextlib.nullcontext(KNOWN.lookup(name)(job, job.population(), settings["simulation"]))


if __name__ == "__main__":
    main()
