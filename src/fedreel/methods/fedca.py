"""FedCA (Zhang et al. 2020): FedSimCLR with a dictionary of all clients' projections and encoders aligned to a base."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedreel.config import check_ranges
from fedreel.core.abilities import Contrastable, able
from fedreel.core.batchnorm import statistics_kept
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.terms import Step, term
from fedreel.methods.fedsimclr import FedSimCLR


@dataclass(frozen=True)
class FedCA(FedSimCLR):
    """Dictionary: after training each client sends normalised projections of some of its samples; the newest
    `dictionary` of all clients are further negatives for everyone in the next round. Alignment: before the first round
    the server trains a base model without labels on its own data; clients add beta * mean ||f(x) - f_base(x)|| over
    `public` of the server's samples, which they are sent with the base's vectors of them."""

    sends: ClassVar = {**FedSimCLR.sends, "projections": "features"}
    may_lack = ("projections",)
    sees = "each"
    trains_server = True

    dictionary: int = 1024
    beta: float = 0.01
    public: int = 1000

    def __post_init__(self) -> None:
        check_ranges(self, "method", dictionary=(0, math.inf), beta=(0, math.inf), public=(1, math.inf))

    def comes_to(self) -> Method:
        return self if self.dictionary or self.beta else FedSimCLR(self.weight_by)

    def run(self, fed: Federation) -> None:
        for round in fed.rounds():
            if round == 1 and self.beta:
                base = fed.train_server(fed.weights, "views")
                fed.memory["public"] = shown = fed.samples(self.public)
                fed.memory["base"] = fed.vectors(base, shown)
            clients, average, new = fed.sample(), fed.mean(), []
            held = {name: fed.memory[name] for name in ("public", "base", "dictionary") if name in fed.memory}
            for update in fed.train(clients, fed.weights, **held, wanted=math.ceil(self.dictionary / len(clients))):
                average.add(update.weights, update.samples)
                new += [rows for name in update.tensors if (rows := _directions(update.tensor(name))) is not None]
            fed.weights = average.value
            if self.dictionary:
                old = [fed.memory["dictionary"]] if "dictionary" in fed.memory else []
                fed.memory["dictionary"] = torch.cat(_alike([*new, *old]))[: self.dictionary].clone()

    def local_training(self, client: Client) -> None:
        task = able(client.task, Contrastable)
        device = next(client.model.parameters()).device
        given = {name: value.to(device) for name, value in client.args.items() if isinstance(value, Tensor)}
        terms = []
        if "dictionary" in given:
            terms.append(more_negatives(given["dictionary"], task.temperature))
        if "public" in given:
            terms.append(alignment(task, given["public"], given["base"], self.beta))
        client.fit(terms)
        if self.dictionary:
            client.tensors["projections"] = _project(client, task, client.arg("wanted", int))


def _directions(rows: Tensor) -> Tensor | None:
    """Projections that a client sent; none if they are no rows of length 1, which would be no directions."""
    sound = rows.ndim == 2 and rows.dtype == torch.float32 and bool((rows.norm(dim=1) - 1).abs().lt(0.01).all())
    return rows if sound else None


def _alike(parts: list[Tensor]) -> list[Tensor]:
    """Those of the width that most have."""
    widths = [part.shape[1] for part in parts]
    return [part for part in parts if part.shape[1] == max(widths, key=widths.count)]


def _project(client: Client, task: Contrastable, wanted: int) -> Tensor:
    """Projections of the client's first samples, of length 1."""
    client.model.eval()
    with torch.no_grad():
        batch = next(client.data.train.batches(max(wanted, 2)))  # in order: the same samples whenever asked
        vectors = task.vectors(client.model, batch[0][:wanted])
        return F.normalize(client.model.head(vectors).float(), dim=1)  # type: ignore[operator]


@term
def more_negatives(step: Step, dictionary: Tensor, temperature: float) -> Tensor:
    """Entries (K, D) of a dictionary join the denominator of NT-Xent: the mean over views z of
    log(1 + sum_r exp(z.r / t) / sum_k exp(z.z_k / t))."""
    z = F.normalize(step.outputs.logits.float(), dim=1)
    own = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -torch.inf)
    others = (z @ dictionary.T / temperature).logsumexp(dim=1)
    return F.softplus(others - own.logsumexp(dim=1)).mean()


@term
def alignment(step: Step, task: Contrastable, samples: Tensor, targets: Tensor, weight: float) -> Tensor:
    """weight * mean ||f(x) - target|| over samples that everyone has, as many as the batch has, drawn anew in each
    step. Running statistics stay as the client's own samples make them."""
    which = torch.randint(len(samples), (len(step.batch[0]),), device=samples.device)
    with statistics_kept(step.model):
        vectors = task.vectors(step.model, samples[which])
    return weight * torch.linalg.vector_norm(vectors.float() - targets[which], dim=1).mean()
