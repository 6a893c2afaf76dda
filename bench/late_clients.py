"""A million clients of whom a thousand are at work at once, and what is gained by not waiting for the slowest.

    python bench/late_clients.py [--clients 1000000] [--part pool|choose|playground]

Pool: FedBuff on a tiny model, its whole product path with run directory, ledger and checkpoints, in pools of very
different size, then FedAvg with cohorts of different size: seconds of a processor for a round and for the start,
peak memory. Playground: clips at 32 clients whose devices differ much in speed; the clock's time until FedAvg, which
waits, and FedBuff, which does not, first reach the same accuracy, three seeds. Choose: the clients' rate for either
method, of the same three, on held-out training clips and another seed. The last line is one JSON object.
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
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

SEEDS = (0, 1, 2)
IN_FLIGHT, BUFFER, ROUNDS = 1000, 100, 12
COHORTS = (100, 300, 1000, 3000)  # of FedAvg
GOAL = 0.9  # of the best accuracy that the run that waits comes to: what both must reach
SETTINGS = {  # of the playground: the clips of its owners, shared out to 32 clients
    "data.partition": {"name": "iid", "num_partitions": 32},
    "train.schedule": "constant",
    "engine.name": "local",
    "round.trust": False,
    "world.seconds": 0.1,
    "world.spread": 1.5,  # of 16 devices one is ten times slower than the middling one
}
WAITS, LATE = "fedavg", "fedbuff"
METHODS = {  # 16 clients are at work at once, and a step of the server is the mean of 16 updates
    WAITS: {"method.name": WAITS, "round.clients": 16, "round.rounds": 24, "round.evaluate_every": 1},
    LATE: {
        "method.name": LATE,
        "method.in_flight": 16,
        "method.buffer": 16,
        "round.rounds": 32,
        "round.evaluate_every": 1,
    },
}
RATES = (1.0, 3.0, 10.0)  # of clients, that both methods are tried with
CHOSEN = {WAITS: 10.0, LATE: 10.0}  # by --part choose


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
    """The rate of each method: that with the highest accuracy on held-out training clips at the end, on a seed of its
    own."""
    print(f"{'rate':>6}{WAITS:>10}{LATE:>10}")
    found: dict[str, dict[float, float]] = {WAITS: {}, LATE: {}}
    for rate in RATES:
        for name, tried in found.items():
            tried[rate] = curve(name, max(SEEDS) + 1, {"train.lr": rate, "data.validate": True})[-1][2]
        print(f"{rate:>6g}{found[WAITS][rate]:>10.3f}{found[LATE][rate]:>10.3f}", flush=True)
    return {"validated": found, "chosen": {name: max(tried, key=tried.__getitem__) for name, tried in found.items()}}


def playground() -> dict[str, Any]:
    """The goal of a seed is GOAL of the best accuracy that FedAvg comes to; a method has reached an accuracy when the
    mean of three tests in a row is that high. Both are tested after every 16 updates."""
    print(f"{'seed':>5}{'goal':>8}{'FedAvg, s':>12}{'FedBuff, s':>12}{'ratio':>8}{'updates':>11}{'best':>14}")
    rows = []
    for seed in SEEDS:
        waits, late = (curve(name, seed, {"train.lr": CHOSEN[name]}) for name in (WAITS, LATE))
        goal = GOAL * max(top1 for _, _, top1 in waits)
        (when, work), (late_when, late_work) = (reached(one, goal) for one in (waits, late))
        best = [max(top1 for _, _, top1 in one) for one in (waits, late)]
        times = {"waits_s": when, "late_s": late_when, "ratio": when / late_when}
        rows.append({"seed": seed, "goal": goal, **times, "updates": [work, late_work], "best": best})
        shown = f"{when:>12.0f}{late_when:>12.0f}{when / late_when:>8.2f}{work:>6}{late_work:>5}"
        print(f"{seed:>5}{goal:>8.3f}{shown}{best[0]:>8.3f}{best[1]:>6.3f}", flush=True)
    ratios = [row["ratio"] for row in rows]
    print(f"times shorter: {statistics.fmean(ratios):.2f} +- {statistics.stdev(ratios):.2f}")
    return {"playground": rows, "mean": statistics.fmean(ratios), "sd": statistics.stdev(ratios)}


def curve(name: str, seed: int, own: dict[str, Any]) -> list[tuple[float, int, float]]:
    """After each test but the first two: the clock, how many updates there have been, and the mean accuracy of this
    test and the two before it."""
    import torch

    from fedreel.config import load_recipe
    from fedreel.runs.reading import read_metrics
    from fedreel.runs.run import run

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        recipe = replace(load_recipe("clips", {**SETTINGS, **METHODS[name], **own}), seed=seed)
        run(recipe, Path(folder) / "run", quiet=True)
        rounds = [*read_metrics(Path(folder) / "run", "train")]
        tests = {record["round"]: record["metrics"]["top1"] for record in read_metrics(Path(folder) / "run", "test")}
    updates = dict(zip((row["round"] for row in rounds), accumulate(row["answered"] for row in rounds)))
    clocks = {row["round"]: row["clock"] for row in rounds}
    marks = sorted(tests)
    found = [
        (clocks[r], updates[r], statistics.fmean(tests[s] for s in marks[i - 2 : i + 1]))
        for i, r in enumerate(marks)
        if i >= 2
    ]
    points = " ".join(f"{clock:.0f}:{top1:.3f}" for clock, _, top1 in found)
    print(f"{name}, seed {seed}, {own}: {points}", file=sys.stderr, flush=True)
    return found


def reached(found: list[tuple[float, int, float]], goal: float) -> tuple[float, int]:
    """When, and after how many updates."""
    return next(((clock, updates) for clock, updates, top1 in found if top1 >= goal), (math.inf, -1))


if __name__ == "__main__":
    main()
