"""FedVMR (Wang et al. 2023): groups in parallel, clients in sequence, models weighted by a validation sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedreel.config import check_ranges
from fedreel.core.abilities import Temporal, able
from fedreel.core.client import Client
from fedreel.core.federation import Federation
from fedreel.core.method import Method, question
from fedreel.core.task import Tensors
from fedreel.core.terms import Step, term
from fedreel.core.update import Answer, Failure, Update
from fedreel.core.weights import Weights
from fedreel.errors import RunError, plain


@dataclass(frozen=True)
class FedVMR(Method):
    """Algorithm 1. Once: clients count the temporal classes of their annotations, p = sum_k (n_k / n) q_k; they are
    divided into groups at random; each uploads a share of its videos, the c-validation set. In every round the first
    client of a group starts from w, each other from its predecessor's model; all train with L + lambda KL(q^Y || p);
    the server scores every model on the c-validation set and w <- sum_k a_k w_k, a = softmax(s / temperature).

    The paper prints a minus before the divergence, which would drive predictions away from p: here it is a plus. It
    gives neither lambda nor the scale of the scores: temperature 1 takes them as shares, 0.01 as percent."""

    sees = "each"
    needs = (Temporal,)

    groups: int = 1
    reshuffle: bool = False  # another order inside the groups in every round
    temperature: float = 0.1
    weight_by: Literal["validation", "samples", "equal"] = "validation"
    lambda_: float = 0.1
    bins: int = 4  # of a moment's start, and of its end
    direction: Literal["prediction", "world"] = "prediction"  # KL(q^Y || p) or KL(p || q^Y)
    memory: float = 0.9  # of the running estimate of q^Y over batches
    share: float = 0.01  # of a client's videos that it uploads, at least one

    def __post_init__(self) -> None:
        check_ranges(self, "method", groups=(1, math.inf), temperature=(1e-6, math.inf), lambda_=(0, math.inf))
        check_ranges(self, "method", bins=(2, 64), memory=(0, 1), share=(0, 1))

    def comes_to(self) -> Method:
        """Without the gap loss nobody counts classes; without c-validation nobody uploads videos."""
        unused: dict[str, Any] = {}
        if not self.lambda_:
            unused |= {"bins": FedVMR.bins, "direction": FedVMR.direction, "memory": FedVMR.memory}
        if self.weight_by != "validation":
            unused |= {"temperature": FedVMR.temperature, "share": FedVMR.share}
        return replace(self, **unused)

    def run(self, fed: Federation) -> None:
        world = fed.once("classes", lambda: self.world(fed)) if self.lambda_ else []
        groups = fed.once("groups", lambda: self.divide(fed))
        sample = fed.once("validation", lambda: self.collect(fed)) if self.weight_by == "validation" else None
        for _ in fed.rounds():
            average = fed.mean(told=self.weight_by == "samples")
            scores: dict[str, float] = {}
            for update in fed.train_chains(self.ordered(groups, fed), fed.weights, world=torch.tensor(world)):
                scores[update.client] = self.score(fed, update, sample)
                average.add_log(update.weights, scores[update.client])
            fed.record("weights", log_weights=scores)
            fed.weights = average.value
            if sample is not None:  # by it a round can be chosen without a look at test data
                fed.record("validation", score=self.tested(fed, fed.weights, sample))

    def world(self, fed: Federation) -> list[float]:
        """How many moments of each temporal class all clients have together."""
        counts = torch.zeros(self.bins**2)
        for answer in fed.ask(fed.clients, "classes"):
            counts = counts + answer.tensor("counts")
        return counts.tolist()

    def divide(self, fed: Federation) -> list[list[str]]:
        """Groups of (nearly) equal size, at random."""
        order = np.random.default_rng([fed.seed, 0xF1]).permutation(len(fed.clients))
        parts = np.array_split(order, min(self.groups, len(order)))
        groups = [[fed.clients[i] for i in part] for part in parts]
        fed.record("groups", groups=groups)
        return groups

    def ordered(self, groups: list[list[str]], fed: Federation) -> list[list[str]]:
        if not self.reshuffle:
            return groups
        draw = np.random.default_rng([fed.seed, 0xF2, fed.round])
        return [[group[i] for i in draw.permutation(len(group))] for group in groups]

    def collect(self, fed: Federation) -> Weights:
        """The c-validation set: every client's sample, one after the other."""
        samples = [answer for answer in fed.ask(fed.clients, "validation") if self._usable(fed, answer)]
        if not samples:
            raise RunError("no client sent examples by which models could be scored", where="[method] weight_by")
        return Weights.of({name: torch.cat([s.tensor(name) for s in samples]) for name in samples[0].tensors})

    def _usable(self, fed: Federation, answer: Answer) -> bool:
        """Whether a model can be scored on these examples alone; others would spoil everybody's score."""
        try:
            alone = self.tested(fed, fed.weights, Weights.of({n: answer.tensor(n) for n in answer.tensors}))
            problem = "" if math.isfinite(alone) else f"a model's score on them is {alone}"
        except Exception as error:
            problem = plain(f"{type(error).__name__}: {error}", 200)
        if problem:
            text = f"no model can be scored on these examples ({problem})"
            fed.refuse(Failure(answer.round, answer.step, answer.client, "rubbish", text))
        return not problem

    def score(self, fed: Federation, update: Update, sample: Weights | None) -> float:
        """The logarithm of a model's weight, up to a constant."""
        if sample is None:
            return math.log(update.samples) if self.weight_by == "samples" else 0.0
        return self.tested(fed, update.weights, sample) / self.temperature

    def tested(self, fed: Federation, weights: Weights, sample: Weights) -> float:
        """s, the score of a model on the c-validation set."""
        return fed.test(weights, Tensors(tuple(sample.values())))["score"]

    # the client's side

    def local_training(self, client: Client) -> None:
        terms = []
        if self.lambda_:
            world, task = client.arg("world", Tensor), able(client.task, Temporal)
            unseen = torch.full_like(world, torch.nan)
            terms = [distribution_gap(task, world, unseen, self.bins, self.lambda_, self.memory, self.direction)]
        client.fit(terms)

    @question(counts="label-statistics")
    def classes(self, client: Client) -> dict[str, Tensor]:
        """How many of this client's training moments are of each temporal class."""
        return {"counts": able(client.task, Temporal).temporal_counts(client.data.train, self.bins)}

    @question(video="raw-samples", words="raw-samples", spans="raw-samples", times="raw-samples")
    def validation(self, client: Client) -> dict[str, Tensor]:
        """All training examples of some of this client's videos."""
        return able(client.task, Temporal).sample(client.data.train, self.share)


@term
def distribution_gap(
    step: Step,
    task: Temporal,
    world: Tensor,
    running: Tensor,
    bins: int,
    weight: float,
    memory: float,
    direction: Literal["prediction", "world"],
) -> Tensor:
    """weight * KL(q || p): p is the share of each temporal class in the world, whose counts are given, q that among
    predictions; both are smoothed by one of the world's counts a class. The value of q is a mean over batches, kept in
    `running` (nan before the first), and its gradient is the newest batch's: both estimate those of all data."""
    n = world.sum()
    batch = task.temporal_distribution(step.outputs, bins).mean(dim=0)
    mean = torch.where(running.isnan(), batch, memory * running + (1 - memory) * batch).detach()
    running.copy_(mean)
    p, q = smoothed(world, n), smoothed(n * (mean + batch - batch.detach()), n)
    return weight * (divergence(q, p) if direction == "prediction" else divergence(p, q))


def smoothed(counts: Tensor, n: float | Tensor) -> Tensor:
    """The paper's "q + 1", on counts: (counts + 1) / (n + K), for counts (..., K) of n moments."""
    return (counts + 1) / (n + counts.shape[-1])


def divergence(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p) = sum q log(q / p). The paper prints it with a minus, which would drive q away from p."""
    return (q * (q / p).log()).sum()
