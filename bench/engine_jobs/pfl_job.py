"""The job on pfl 0.6: its FederatedAveraging on its SimulatedBackend, one process, user data as resident tensors."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from common import (
    BATCH,
    CLIENTS_PER_ROUND,
    LEARNING_RATE,
    Job,
    build_model,
    load_job,
    parse_arguments,
    set_up,
    write_result,
)
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """pfl asks a model for its loss and its metrics."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(self.loss(images, labels).item() * len(images), len(images))}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.ticks: list[float] = []

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.ticks.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.ticks.append(time.perf_counter())
        return False, Metrics()


def federated_data(job: Job) -> FederatedDataset:
    # Built once, so that pfl's own cache of batches works for users seen again.
    users = [PyTorchTensorDataset(data, user_id=str(u)) for u, data in enumerate(zip(job.images, job.labels))]
    sequence = itertools.chain.from_iterable(job.cohorts)
    return FederatedDataset(users.__getitem__, lambda: next(sequence))


def main() -> None:
    arguments = parse_arguments()
    set_up(arguments.threads)
    job = load_job(arguments.data, arguments.rounds)
    network = build_model(arguments.model)
    model = PyTorchModel(
        Classifier(network),
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data, clock = federated_data(job), Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=len(job.cohorts),
            evaluation_frequency=len(job.cohorts),  # only in the first round, which is not timed
            train_cohort_size=CLIENTS_PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    write_result(arguments, job, clock.ticks, network)


if __name__ == "__main__":
    main()
