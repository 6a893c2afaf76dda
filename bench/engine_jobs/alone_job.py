"""What the machine itself allows: n bare processes train the clients of a round, with no server and no exchange."""

from __future__ import annotations

import json
import multiprocessing
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from bare_job import train_user
from common import LEARNING_RATE, Job, build_model, load_job, parse_arguments, set_up

from fedreel.machine.processes import keep_freed_memory


def main() -> None:
    arguments = parse_arguments("--counts")
    set_up(1)
    job = load_job(arguments.data, 1)
    seconds = {n: time_processes(arguments.model, job, n) for n in map(int, arguments.counts.split(","))}
    Path(arguments.out).write_text(json.dumps(seconds))


def time_processes(model: str, job: Job, count: int) -> float:
    """From when all are ready, one client behind them, to when the last has ended; whoever is free takes the next."""
    context = multiprocessing.get_context("fork")
    ready, taken, ends = context.Barrier(count + 1), context.Value("i", 0), context.Queue()
    processes = [context.Process(target=work, args=(model, job, ready, taken, ends)) for _ in range(count)]
    for process in processes:
        process.start()
    ready.wait()
    began = time.monotonic()
    last = max(ends.get() for _ in processes)
    for process in processes:
        process.join()
    return last - began


def work(model_name: str, job: Job, ready: Barrier, taken: Synchronized[int], ends: Any) -> None:
    keep_freed_memory()  # as a worker of `processes` does
    model, users = build_model(model_name), job.cohorts[-1]
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    weights = [p.detach().clone() for p in parameters]
    train_user(model, optimizer, weights, job, users[0])
    ready.wait()
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= len(users):
            break
        train_user(model, optimizer, weights, job, users[number])
    ends.put(time.monotonic())


if __name__ == "__main__":
    main()
