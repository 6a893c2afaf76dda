"""fedreel's contender: the whole product path (run directory, ledger, admission, a checkpoint after every round)."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import BATCH, LEARNING_RATE, WARM_UP, Job, build_model, load_job, parse_arguments, set_up, write_result
from torch import Tensor, nn
from torch.nn import functional

from fedreel.config import Recipe, RoundConfig, TrainConfig
from fedreel.core.federation import Federation
from fedreel.core.task import ClientData, Examples, Outputs, Population, Task, Tensors
from fedreel.methods.fedavg import FedAvg
from fedreel.runs.run import run


class Users(Population):
    def __init__(self, job: Job) -> None:
        self.job = job
        self.clients = tuple(map(str, range(len(job.images))))

    def data(self, client: str) -> ClientData:
        images, labels = self.job.images[int(client)], self.job.labels[int(client)]
        return ClientData(Tensors((images, labels)), Tensors((images[:0], labels[:0])), {})


@dataclass(frozen=True)
class Images(Task):
    job: Job
    name: str

    def model(self) -> nn.Module:
        return build_model(self.name)

    def population(self, data: Any, seed: int) -> Population:
        return Users(self.job)

    def forward(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Outputs:
        logits = model(batch[0])
        return Outputs(logits, logits)

    def loss(self, outputs: Outputs, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(outputs.logits, batch[1])

    def evaluate(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, float]:
        return {"n": 0.0}


@dataclass(frozen=True)
class FixedCohorts(FedAvg):
    """FedAvg over the cohorts that all contenders share. A tick falls after the checkpoint of the round before."""

    job: Any = None
    ticks: Any = None

    def run(self, fed: Federation) -> None:
        for round in fed.rounds():
            self.ticks.append(time.perf_counter())
            average = fed.average([str(u) for u in self.job.cohorts[round - 1]], fed.weights, by=self.weight_by)
            fed.weights = self.step(fed, average.weights)


def main() -> None:
    arguments = parse_arguments("--engine", "--workers", "--device")
    set_up(arguments.threads)
    job = load_job(arguments.data, arguments.rounds)
    method = FixedCohorts(job=job, ticks=[])
    recipe = Recipe(
        system="bench",
        device=arguments.device,
        task={"name": arguments.model},
        method={"name": "fedavg"},
        engine={"name": arguments.engine} | ({"workers": arguments.workers} if arguments.workers else {}),
        train=TrainConfig(batch_size=BATCH, lr=LEARNING_RATE, shuffle=False),
        round=RoundConfig(rounds=WARM_UP + arguments.rounds, evaluate_every=0),
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        cpu = time.process_time()
        result = run(recipe, out, task=Images(job, arguments.model), method=method, quiet=True)
        used = time.process_time() - cpu  # of this process: on `processes` what the server does
        ticks = [*method.ticks, method.ticks[0] + result.summary["wall_seconds"]]
        model = build_model(arguments.model)
        from safetensors.torch import load_file

        model.load_state_dict(load_file(out / "model" / "global.safetensors"))
    write_result(arguments, job, ticks, model, cpu_seconds=used)


if __name__ == "__main__":
    main()
