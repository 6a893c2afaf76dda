"""A million clients of whom a thousand are at work at once, and what is gained by not waiting for the slowest.

    python bench/late_clients.py [--clients 1000000] [--part pool|choose|playground]

Pool: FedBuff on a tiny model, its whole product path with run directory, ledger and checkpoints, in pools of very
different size, then FedAvg with cohorts of different size: seconds of a processor for a round and for the start,
peak memory. Playground: pictures at 32 clients whose devices differ much in speed; the clock's time until FedAvg, which
waits, and FedBuff, which does not, first reach the same accuracy, three seeds. Choose: the settings of both methods, by
the same rule out of as many, on held-out training pictures and other seeds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

IN_FLIGHT, BUFFER, ROUNDS = 1000, 100, 12
COHORTS = (100, 300, 1000, 3000)  # of FedAvg
SEEDS, CHOOSING = (0, 1, 2), (3, 4)  # that are reported, and that settings are chosen with
GOAL = 0.9  # of the accuracy that the best synchronous run ends with: what both must reach
WAITS, LATE = "fedavg", "fedbuff"
SIZES, RATES = (8, 16), (0.3, 1.0, 3.0)  # of a cohort or a buffer; of clients: what both methods are tried with
AT_WORK, UPDATES, TESTED = 16, 512, 16  # clients of FedBuff at once; of a run, and between two of its tests
SETTINGS: dict[str, Any] = {  # the playground's pictures: what a frozen network's first stages see, and a head on it
    "system": "late clients",
    "device": "cpu",
    "task": {
        "name": "image",
        "size": 64,
        "padding": 0.0,
        "flip": 0.0,
        "backbone": {"name": "efficientnet-lite0", "stages": 3, "init": "imagenet", "tune": "head"},
    },
    "data": {"source": "playground", "size": "small", "partition": {"name": "iid", "num_partitions": 32}},
    "engine": {"name": "local"},
    "world": {"seconds": 0.1, "spread": 1.5},  # of 16 devices one is ten times slower than the middling one
}
Setting = tuple[int, float]  # a cohort or a buffer, and a rate
CHOSEN: dict[str, Setting] = {WAITS: (8, 0.3), LATE: (8, 0.3)}  # by --part choose
Curve = list[tuple[float, int, float]]  # the clock, updates so far, and the accuracy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--part", choices=("pool", "choose", "playground"))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one_pool(options.one[0], *map(int, options.one[1:]))
    found: dict[str, Any] = {}
    if options.part in (None, "pool"):
        found |= pools(options.clients)
    if options.part == "choose":
        found |= choose()
    if options.part in (None, "playground"):
        found |= playground()
    print(json.dumps({"bench": "late_clients", **found}))


def pools(clients: int) -> dict[str, Any]:
    """Each pool in a process of its own, because a process's peak never falls."""
    print("seconds of a processor")
    print(f"{'method':<10}{'pool':>10}{'cohort':>8}{'a round, s':>12}{'peak MB':>10}{'start-up, s':>12}", flush=True)
    late = [_pool("fedbuff", count, BUFFER) for count in (2 * IN_FLIGHT, max(2 * IN_FLIGHT, clients // 10), clients)]
    waits = [_pool("fedavg", clients, cohort) for cohort in COHORTS]
    return {
        "pools": late,
        "cohorts": waits,
        "start_of_largest_to_smallest": late[-1]["start_s"] / late[0]["start_s"],
        "peak_of_largest_to_smallest": late[-1]["peak_mb"] / late[0]["peak_mb"],
        "round_of_largest_to_smallest": late[-1]["round_s"] / late[0]["round_s"],
        "ms_a_client": [1000 * one["round_s"] / one["cohort"] for one in waits],
    }


def _pool(method: str, count: int, cohort: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", method, str(count), str(cohort)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    one = {"method": method, "pool": count, "cohort": cohort, **json.loads(said.splitlines()[-1])}
    shown = f"{one['round_s']:>12.3f}{one['peak_mb']:>10.0f}{one['start_s']:>12.2f}"
    print(f"{method:<10}{count:>10}{cohort:>8}{shown}", flush=True)
    return one


def one_pool(name: str, count: int, cohort: int) -> None:
    """Start-up is from the call of `run` to the method's first step. Of FedBuff's rounds the first two are left out, in
    which everybody is ordered."""
    import torch
    from torch import Tensor, nn

    from fedreel.config import Recipe, RoundConfig, TrainConfig, WorldConfig
    from fedreel.core.pool import ByClient, Numbered
    from fedreel.core.task import ClientData, Outputs, Population, Task, Tensors
    from fedreel.methods.fedavg import FedAvg
    from fedreel.methods.fedbuff import FedBuff
    from fedreel.runs.run import run

    torch.set_num_threads(1)

    class Many(Population):
        clients = Numbered(count)

        def data(self, client: str) -> ClientData:
            x = Tensors((torch.full((4, 8), float(int(client.rpartition("-")[2]) % 7)),))
            return ClientData(x, x, {})

        def describe(self) -> dict[str, Any]:
            return {"train": ByClient(self.clients, lambda client: [4])}

    @dataclass(frozen=True)
    class Small(Task):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))

        def population(self, data: Any, seed: int) -> Population:
            return Many()

        def forward(self, model: nn.Module, batch: tuple[Tensor]) -> Outputs:
            out = model(batch[0])
            return Outputs(out, out)

        def loss(self, outputs: Outputs, batch: tuple[Tensor]) -> Tensor:
            return (outputs.logits - 1).square().mean()

        def evaluate(self, model: nn.Module, examples: Any, batch_size: int) -> dict[str, float]:
            return {"n": 0.0}

    late = name == "fedbuff"
    recipe = Recipe(
        system="late clients",
        device="cpu",
        task={"name": "recognition"},
        method={"name": name},
        engine={"name": "local"},
        train=TrainConfig(batch_size=4, lr=0.01),
        round=RoundConfig(rounds=ROUNDS if late else 5, clients=0 if late else cohort, evaluate_every=0, trust=False),
        world=WorldConfig(drop=0.05),
    )
    method: Any = FedBuff(buffer=cohort, in_flight=IN_FLIGHT) if late else FedAvg()
    began = time.process_time()
    moments: list[float] = []
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(type(method), "run", _noting(method.run, moments)):
        run(recipe, Path(folder) / "run", quiet=True, task=Small(), method=method)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rounds = [end - begin for begin, end in pairwise(moments[1:])]
    taken = statistics.median(rounds[2:] if late else rounds)
    print(json.dumps({"round_s": taken, "peak_mb": peak, "start_s": moments[0] - began}))


def _noting(work: Callable[[Any], None], moments: list[float]) -> Callable[[Any, Any], None]:
    """A method's `run` that notes the processor's time when it begins, when each round begins, and when it ends."""

    def noted(_: Any, fed: Any) -> None:
        given = fed.rounds

        def rounds() -> Iterator[int]:
            for number in given():
                moments.append(time.process_time())
                yield number

        fed.rounds = rounds
        moments.append(time.process_time())
        work(fed)
        moments.append(time.process_time())

    return noted


def choose() -> dict[str, Any]:
    """Each method's setting, by held-out training pictures and seeds of their own: that which reaches the goal soonest
    by the clock, in the mean over these seeds. The goal is GOAL of the highest accuracy that a setting of FedAvg ends
    with, in the mean over them."""
    print(f"{'method':<10}{'setting':<24}{'ends with':>10}{'reaches the goal, s':>21}")
    curves: dict[tuple[str, Setting], list[Curve]] = {}
    for name, size, rate in product((WAITS, LATE), SIZES, RATES):
        curves[name, (size, rate)] = [curve(name, (size, rate), seed, validate=True) for seed in CHOOSING]
    ends = {key: statistics.fmean(one[-1][2] for one in found) for key, found in curves.items()}
    goal = GOAL * max(end for (name, _), end in ends.items() if name == WAITS)
    times = {key: statistics.fmean(reached(one, goal)[0] for one in found) for key, found in curves.items()}
    for (name, own), when in times.items():
        print(f"{name:<10}{_words(name, own):<24}{ends[name, own]:>10.3f}{when:>21.0f}")
    best = {name: min((when, own) for (of, own), when in times.items() if of == name)[1] for name in (WAITS, LATE)}
    print(f"goal {goal:.3f}; {', '.join(f'{name}: {_words(name, own)}' for name, own in best.items())}", flush=True)
    tried = [{"method": n, "setting": own, "ends": ends[n, own], "seconds": times[n, own]} for n, own in times]
    return {"goal": goal, "chosen": best, "tried": tried}


def playground() -> dict[str, Any]:
    """What the chosen settings come to on the test pictures. The goal of a seed is GOAL of the accuracy that FedAvg
    ends with; a method has reached an accuracy when the mean of three tests in a row is that high."""
    print(", ".join(f"{name}: {_words(name, own)}" for name, own in CHOSEN.items()))
    print(f"{'seed':>5}{'goal':>8}{'FedAvg, s':>12}{'FedBuff, s':>12}{'ratio':>8}{'updates':>11}{'at the end':>14}")
    rows = []
    for seed in SEEDS:
        waits, late = (curve(name, own, seed, validate=False) for name, own in CHOSEN.items())
        goal, ends = GOAL * waits[-1][2], [waits[-1][2], late[-1][2]]
        (when, work), (late_when, late_work) = (reached(one, goal) for one in (waits, late))
        ratio = when / late_when
        times = {"waits_s": when, "late_s": late_when, "ratio": ratio}
        rows.append({"seed": seed, "goal": goal, **times, "updates": [work, late_work], "ends": ends})
        shown = f"{when:>12.0f}{late_when:>12.0f}{ratio:>8.2f}{work:>6}{late_work:>5}"
        print(f"{seed:>5}{goal:>8.3f}{shown}{ends[0]:>8.3f}{ends[1]:>6.3f}", flush=True)
    ratios = [row["ratio"] for row in rows]
    mean, spread = statistics.fmean(ratios), statistics.stdev(ratios)
    print(f"times shorter: {mean:.2f} +- {spread:.2f}, at least {min(ratios):.2f}")
    return {"playground": rows, "mean": mean, "sd": spread}


def curve(name: str, setting: Setting, seed: int, validate: bool) -> Curve:
    """After each test but the first two: the clock, how many updates there have been, and the mean accuracy of this
    test and the two before it. Both methods make as many updates, and are tested equally often."""
    import torch

    from fedreel.config import make_recipe
    from fedreel.runs.reading import read_metrics
    from fedreel.runs.run import run

    torch.set_num_threads(1)
    size, rate = setting
    late = {"in_flight": AT_WORK, "buffer": size} if name == LATE else {}
    rounds = {"rounds": UPDATES // size, "evaluate_every": TESTED // size, "trust": False}
    own = {
        "seed": seed,
        "method": {"name": name, **late},
        "data": {**SETTINGS["data"], "validate": validate},
        "train": {"epochs": 1, "batch_size": 8, "lr": rate, "schedule": "constant"},
        "round": {**rounds, **({} if late else {"clients": size})},
    }
    with tempfile.TemporaryDirectory() as folder:
        run(make_recipe({**SETTINGS, **own}, __file__), Path(folder) / "run", quiet=True)
        rows = [*read_metrics(Path(folder) / "run", "train")]
        tests = {record["round"]: record["metrics"]["top1"] for record in read_metrics(Path(folder) / "run", "test")}
    updates = dict(zip((row["round"] for row in rows), accumulate(row["answered"] for row in rows)))
    clocks = {row["round"]: row["clock"] for row in rows}
    marks = sorted(tests)
    return [
        (clocks[r], updates[r], statistics.fmean(tests[s] for s in marks[i - 2 : i + 1]))
        for i, r in enumerate(marks)
        if i >= 2
    ]


def reached(found: Curve, goal: float) -> tuple[float, int]:
    """When, and after how many updates."""
    return next(((clock, updates) for clock, updates, top1 in found if top1 >= goal), (math.inf, -1))


def _words(name: str, setting: Setting) -> str:
    return f"{'buffer' if name == LATE else 'cohort'} {setting[0]}, rate {setting[1]:g}"


if __name__ == "__main__":
    main()
