"""A million clients of whom a thousand are at work at once, and what is gained by not waiting for the slowest.

    python bench/late_clients.py [--clients 1000000] [--part pool|playground]

Pool: FedBuff on a tiny model, its whole product path with run directory, ledger and checkpoints, against a pool of a
thousandth of the size: seconds a round, peak memory, start-up. Playground: pictures of ten
owners with devices of very different speed; the clock's time until FedAvg, which waits, and FedBuff, which does not,
first reach the same accuracy, three seeds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SEEDS = (0, 1, 2)
IN_FLIGHT, BUFFER, ROUNDS = 1000, 100, 12
GOAL = 0.95  # of the best accuracy that the runs that wait come to: what both must reach
SETTINGS = {  # of the playground
    "method.name": "fedavg",
    "round.evaluate_every": 1,
    "round.trust": False,
    "world.seconds": 0.1,
}
LATE = {"method.name": "fedbuff", "method.buffer": 5, "method.in_flight": 10}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--part", choices=("pool", "playground"))
    parser.add_argument("--rounds", type=int, default=16, help="of FedAvg; FedBuff has six times as many")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one_pool(options.one)
    found: dict[str, Any] = {}
    if options.part != "playground":
        found |= pools(options.clients)
    if options.part != "pool":
        found |= playground(options.rounds)
    print(json.dumps({"bench": "late_clients", **found}))


def pools(clients: int) -> dict[str, Any]:
    """Each pool in a process of its own, because a process's peak never falls."""
    print(f"FedBuff, {IN_FLIGHT} in flight, a buffer of {BUFFER}")
    print(f"{'clients':>10}{'s a round':>12}{'peak MB':>10}{'start-up s':>12}", flush=True)
    rows = {}
    for count in (max(2 * IN_FLIGHT, clients // 1000), clients):
        command = [sys.executable, __file__, "--one", str(count)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows[count] = one = json.loads(said.splitlines()[-1])
        print(f"{count:>10}{one['round_s']:>12.3f}{one['peak_mb']:>10.0f}{one['start_s']:>12.2f}", flush=True)
    return {"pools": rows}


def one_pool(count: int) -> None:
    import torch
    from torch import Tensor, nn

    from fedreel.config import Recipe, RoundConfig, TrainConfig, WorldConfig
    from fedreel.core.task import ClientData, Outputs, Population, Task, Tensors
    from fedreel.methods.fedbuff import FedBuff
    from fedreel.runs.reading import read_metrics
    from fedreel.runs.run import run

    torch.set_num_threads(1)

    class Many(Population):
        clients = tuple(f"client-{i}" for i in range(count))

        def data(self, client: str) -> ClientData:
            x = Tensors((torch.full((4, 8), float(int(client.rpartition("-")[2]) % 7)),))
            return ClientData(x, x, {})

        def describe(self) -> dict[str, Any]:
            return {"train": {client: [4] for client in self.clients}}

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

    recipe = Recipe(
        system="late clients",
        device="cpu",
        task={"name": "recognition"},
        method={"name": "fedbuff"},
        engine={"name": "local"},
        train=TrainConfig(batch_size=4, lr=0.01),
        round=RoundConfig(rounds=ROUNDS, evaluate_every=0, trust=False),
        world=WorldConfig(drop=0.05),
    )
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run(recipe, Path(folder) / "run", quiet=True, task=Small(), method=FedBuff(buffer=BUFFER, in_flight=IN_FLIGHT))
        whole = time.perf_counter() - began
        seconds = [record["seconds"] for record in read_metrics(Path(folder) / "run", "train")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rounds = statistics.median(seconds[2:])  # the first two order everybody
    print(json.dumps({"round_s": rounds, "peak_mb": peak, "start_s": whole - sum(seconds[2:])}))


def playground(rounds: int) -> dict[str, Any]:
    curves = {(name, seed): curve(name, seed, rounds) for seed in SEEDS for name in ("fedavg", "fedbuff")}
    print(f"{'seed':>5}{'goal':>8}{'FedAvg, s':>12}{'FedBuff, s':>12}{'ratio':>8}")
    ratios = []
    for seed in SEEDS:
        goal = GOAL * max(top1 for _, top1 in curves["fedavg", seed])
        waits, late = (reached(curves[name, seed], goal) for name in ("fedavg", "fedbuff"))
        ratios.append(waits / late)
        print(f"{seed:>5}{goal:>8.3f}{waits:>12.0f}{late:>12.0f}{waits / late:>8.2f}", flush=True)
    mean, sd = statistics.fmean(ratios), statistics.stdev(ratios)
    print(f"times shorter: {mean:.2f} +- {sd:.2f}")
    return {"ratios": ratios, "mean": mean, "sd": sd}


def curve(name: str, seed: int, rounds: int) -> list[tuple[float, float]]:
    """The clock and the accuracy after each round."""
    from fedreel.config import load_recipe
    from fedreel.runs.reading import read_metrics
    from fedreel.runs.run import run

    own = {**SETTINGS, **(LATE if name == "fedbuff" else {}), "round.rounds": rounds * (6 if name == "fedbuff" else 1)}
    with tempfile.TemporaryDirectory() as folder:
        recipe = replace(load_recipe("fedlid", own), seed=seed, server=None)  # of these methods no server trains
        run(recipe, Path(folder) / "run", quiet=True)
        clocks = [record["clock"] for record in read_metrics(Path(folder) / "run", "train")]
        tests = [record["metrics"]["top1"] for record in read_metrics(Path(folder) / "run", "test")]
    return [*zip(clocks, tests)]


def reached(found: list[tuple[float, float]], goal: float) -> float:
    return next((clock for clock, top1 in found if top1 >= goal), float("inf"))


if __name__ == "__main__":
    main()
