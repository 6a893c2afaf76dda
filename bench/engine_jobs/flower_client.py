"""The Flower contender's client: a module of its own so that Ray's actors import it and keep their data and model."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from common import BATCH, LEARNING_RATE, Job, build_model, load_job, set_up
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config: Any = message.content["config"]
    job, model, optimizer = resident(config["data"], config["model"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    user = config["user"]
    for images, labels in zip(job.images[user].split(BATCH), job.labels[user].split(BATCH)):
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    reply = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(job.labels[user])}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


@cache
def resident(data: str, model_name: str) -> tuple[Job, nn.Module, torch.optim.Optimizer]:
    """Loaded once in each actor; an actor has one core, hence one thread."""
    set_up(1)
    model = build_model(model_name)
    return load_job(data, 0), model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
