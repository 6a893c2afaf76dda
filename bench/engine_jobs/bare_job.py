"""The yardstick: federated averaging as a plain PyTorch loop, one model object, weights loaded in place."""

from __future__ import annotations

import time

import torch
from common import BATCH, LEARNING_RATE, Job, build_model, load_job, parse_arguments, set_up, write_result
from torch import Tensor, nn
from torch.nn import functional


def main() -> None:
    arguments = parse_arguments()
    set_up(arguments.threads)
    job = load_job(arguments.data, arguments.rounds)
    model = build_model(arguments.model)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE)
    weights = [p.detach().clone() for p in parameters]
    total = [torch.zeros_like(w) for w in weights]

    ticks = [time.perf_counter()]
    for cohort in job.cohorts:
        for user in cohort:
            train_user(model, optimizer, weights, job, user)
            with torch.no_grad():
                torch._foreach_add_(total, parameters)
        torch._foreach_copy_(weights, torch._foreach_div(total, len(cohort)))
        torch._foreach_zero_(total)
        ticks.append(time.perf_counter())

    with torch.no_grad():
        torch._foreach_copy_(parameters, weights)
    write_result(arguments, job, ticks, model)


def train_user(model: nn.Module, optimizer: torch.optim.Optimizer, weights: list[Tensor], job: Job, user: int) -> None:
    """One epoch of a user's images from these weights."""
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), weights)
    for images, labels in zip(job.images[user].split(BATCH), job.labels[user].split(BATCH)):
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
