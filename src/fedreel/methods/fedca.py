"""FedCA (Zhang et al. 2020): FedSimCLR with a dictionary of all clients' projections and encoders aligned to a base."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.config import check_ranges
from fedreel.core.aggregate import Mean
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import question
from fedreel.core.task import studied
from fedreel.core.training import alignment, more_negatives
from fedreel.methods.fedsimclr import FedSimCLR


@dataclass(frozen=True)
class FedCA(FedSimCLR):
    """Dictionary: after training each client sends normalised projections of some of its samples; the newest
    `dictionary` of all clients are further negatives for everyone in the next round. Alignment: before the first round
    the server trains a base model without labels on its own data; clients add beta * mean ||f(x) - f_base(x)|| over
    `public` of the server's samples, which they are sent with the base's vectors of them."""

    studies = True

    dictionary: int = 1024
    beta: float = 0.01
    public: int = 1000

    def __post_init__(self) -> None:
        check_ranges(self, "method", dictionary=(0, math.inf), beta=(0, math.inf), public=(1, math.inf))

    def run(self, fed: Federation) -> None:
        studied(fed.task).check_views()
        for round in fed.rounds():
            if round == 1 and self.beta:
                base = fed.study(fed.weights, "views")
                fed.memory["public"] = shown = fed.samples(self.public)
                fed.memory["base"] = fed.vectors(base, shown)
            clients, average = fed.sample(), Mean()
            held = {name: fed.memory[name] for name in ("public", "base", "dictionary") if name in fed.memory}
            for update in fed.train(clients, fed.weights, **held, wanted=math.ceil(self.dictionary / len(clients))):
                assert update.weights is not None
                average.add(update.weights, update.samples)
            fed.weights = average.value
            if self.dictionary:
                new = [u.weights["projections"] for u in fed.ask(clients, "projections") if u.weights is not None]
                old = [fed.memory["dictionary"]] if "dictionary" in fed.memory else []
                fed.memory["dictionary"] = torch.cat([*new, *old])[: self.dictionary].clone()

    def local_training(self, client: Client) -> None:
        task = studied(client.task)
        device = next(client.model.parameters()).device
        given = {name: value.to(device) for name, value in client.args.items() if isinstance(value, Tensor)}
        terms = []
        if "dictionary" in given:
            terms.append(more_negatives(given["dictionary"], task.temperature))
        if "public" in given:
            terms.append(alignment(task, given["public"], given["base"], self.beta))
        client.fit(terms)
        client.state.tensors["projections"] = self._project(client, int(client.args["wanted"]))  # type: ignore[arg-type]

    @question(projections="features")
    def projections(self, client: Client) -> dict[str, Tensor]:
        return {"projections": client.state.tensors["projections"]}

    def _project(self, client: Client, wanted: int) -> Tensor:
        client.model.eval()
        with torch.no_grad():
            for batch in client.data.train.batches(max(wanted, 2)):  # in order: the same samples whenever asked
                vectors = studied(client.task).vectors(client.model, batch[0][:wanted])
                return F.normalize(client.model.head(vectors).float(), dim=1)  # type: ignore[operator]
        raise AssertionError("a client without samples does not train")
