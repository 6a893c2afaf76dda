"""The job on Flower 1.41's simulation: FedAvg over 1000 supernodes, one Ray actor for each core."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable

# Read by flwr and ray when they are imported: nothing is reported, looked up or installed while timing.
os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import flower_client
from common import CLIENTS_PER_ROUND, USERS, Job, build_model, load_job, parse_arguments, write_result
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class GivenCohorts(FedAvg):
    """Stock FedAvg, but each message names the user to train, so that every contender trains the same users."""

    def __init__(self, arguments: argparse.Namespace, job: Job) -> None:
        super().__init__(
            fraction_train=CLIENTS_PER_ROUND / USERS,
            min_train_nodes=CLIENTS_PER_ROUND,
            min_available_nodes=USERS,
            fraction_evaluate=0.0,
        )
        self.arguments, self.job = arguments, job

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message, user in zip(messages, self.job.cohorts[server_round - 1], strict=True):
            order = {"user": user, "data": self.arguments.data, "model": self.arguments.model}
            message.content = RecordDict({"arrays": arrays, "config": ConfigRecord(order)})
        return messages

    def summary(self) -> None:
        pass


def main() -> None:
    arguments = parse_arguments("--actor-per-core")
    job = load_job(arguments.data, arguments.rounds)
    model = build_model(arguments.model)
    ticks: list[float] = []
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        result = GivenCohorts(arguments, job).start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            num_rounds=len(job.cohorts),
            evaluate_fn=lambda round_number, arrays: ticks.append(time.perf_counter()),
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())

    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        run_simulation(
            server_app=server,
            client_app=flower_client.app,
            num_supernodes=USERS,
            backend_config={
                "init_args": {
                    "num_cpus": arguments.threads,
                    "object_store_memory": 1 << 30,
                    "_temp_dir": folder,
                },
                # Flower's default is two CPUs a client, so two cores make one actor
                "client_resources": {"num_cpus": 1 if arguments.actor_per_core else 2, "num_gpus": 0.0},
            },
        )
    write_result(arguments, job, ticks, model)


if __name__ == "__main__":
    main()
