"""What clients are asked when the last round is over, so that it is known how far the model is to be trusted.

They answer in sums over their samples. An owner's policy may refuse a part of them; then the rest is answered."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedreel.core.abilities import Accountable, Trials, able
from fedreel.core.method import question
from fedreel.core.update import Answer, Named, Value
from fedreel.metrics.calibration import BINS, TEMPERATURES, binned, loss_sums
from fedreel.metrics.familiarity import LEAST, MOST, STEPS, WIDTH, Space, Sums, histogram, projected

if TYPE_CHECKING:
    from fedreel.core.client import Client

LOOKED_AT = 1000  # of a client's training samples, drawn where it has more
HALVES = (slice(0, None, 2), slice(1, None, 2))  # of a client's held-out samples, in their order: every other one

Answered = Mapping[str, Value]


def sums_problem(answer: Answer) -> str:
    """What cannot be true of sums over samples; the server would trip over it, or everybody's result be spoiled."""
    numbers, given = answer.numbers, answer.tensors
    if ({"losses", "scores"} & {*given} and "held_out" not in numbers) or ("losses" in given and "scores" not in given):
        return "sums of held-out samples whose number is not told"
    if ("total" in given) != ("products" in given) or ("total" in given and not numbers.get("learned")):
        return "sums of looks that are not whole"
    n = numbers.get("held_out", 0.0)
    if "losses" in given and not _like(given["losses"], (2, len(TEMPERATURES)), 0.0):
        return "losses that are no sums at each temperature"
    if "scores" in given:
        if not _like(given["scores"], (3,), -math.inf):
            return "scores that are no three sums"
        score, guess, squares = answer.tensor("scores").tolist()
        if max(abs(score), abs(guess)) > n * (1 + 1e-6) or not 0 <= squares <= 4 * n * (1 + 1e-6):
            return "sums of scores that so few samples cannot have"
    if "total" in given:
        total, products = answer.tensor("total"), answer.tensor("products")
        width = total.numel()
        if not _like(total, (width,), -math.inf) or not _like(products, (width, width), -math.inf) or width > WIDTH:
            return "sums of looks that are no vector and its products"
        if not Sums(numbers["learned"], total, products).possible:
            return "sums of looks that no samples have"
    return ""


def bins_problem(answer: Answer) -> str:
    """What cannot be true of counts of samples."""
    for name, shape in (("before", (BINS, 3)), ("after", (BINS, 3)), ("distances", (STEPS * (MOST - LEAST) + 1,))):
        if name in answer.tensors and not _like(answer.tensors[name], shape, 0.0):
            return f"'{name}' that are no counts of samples"
    return ""


def _like(tensor: Named, shape: tuple[int, ...], least: float) -> bool:
    exact = isinstance(tensor, Tensor) and tensor.shape == shape and tensor.dtype == torch.float64
    return exact and bool((tensor >= least).all() and (tensor.abs() <= 1e15).all())  # type: ignore[operator, union-attr]


@question(
    ("held_out", "learned", "losses", "scores", "total", "products"),
    sums_problem,
    samples="count",
    held_out="count",
    learned="count",
    losses="metric",
    scores="metric",
    total="feature-statistics",
    products="feature-statistics",
)
def calibration_sums(client: Client, allowed: Collection[str]) -> Answered:
    """Of held-out samples the losses at each temperature, those of every other sample apart (2, temperatures), and the
    sums of scores, of guesses and of their squared differences; of training samples the sums of their looks."""
    answer: dict[str, Value] = {}
    counts: dict[str, float] = {}
    if "scores" in allowed:
        held_out = _held_out(client)
        gain = held_out.scores - held_out.guesses
        counts["held_out"] = len(held_out.scores)
        answer["scores"] = torch.stack([held_out.scores.sum(), held_out.guesses.sum(), gain.square().sum()])
        if held_out.logits is not None and held_out.labels is not None:
            answer["losses"] = torch.stack([loss_sums(held_out.logits[h], held_out.labels[h]) for h in HALVES])
    if "total" in allowed:
        sums = Sums.of(_looks(client, training=True))
        counts["learned"] = sums.samples
        answer |= {"total": sums.total, "products": sums.products} if sums.samples else {}
    return {"samples": min(counts.values()), **counts, **answer}


@question(
    ("before", "after", "distances"),
    bins_problem,
    samples="count",
    before="metric",
    after="metric",
    distances="feature-statistics",
)
def calibration_bins(
    client: Client,
    allowed: Collection[str],
    temperatures: Tensor | None = None,
    mean: Tensor | None = None,
    whitening: Tensor | None = None,
) -> Answered:
    """Held-out samples by their confidence, as the model has it and at a temperature that was fitted without them: the
    first of two for every other sample, the second for the rest. And by how far they are from the mean look."""
    answer: dict[str, Value] = {}
    samples = 0
    if temperatures is not None and "before" in allowed:
        logits, labels = (held_out := _held_out(client)).logits, held_out.labels
        if logits is not None and labels is not None:
            samples = len(labels)
            first, second = (binned(logits[h], labels[h], float(t)) for h, t in zip(HALVES, temperatures))
            answer |= {"before": binned(logits, labels, 1.0), "after": first + second}
    if mean is not None and whitening is not None and "distances" in allowed:
        looks = _looks(client, training=False)
        samples = len(looks)
        answer["distances"] = histogram(Space(mean, whitening).distances(looks) if samples else torch.zeros(0))
    return {"samples": float(samples), **answer}


QUESTIONS: Mapping[str, Callable[..., Answered]] = {f.__name__: f for f in (calibration_sums, calibration_bins)}


def _held_out(client: Client) -> Trials:
    """All of a client's held-out samples, by the model as it is used: nothing is made ready for a test."""
    client.model.eval()
    task, none = able(client.task, Accountable), torch.zeros(0, dtype=torch.float64)
    with torch.no_grad():
        found = list(task.trials(client.model, client.data, 4 * client.config.batch_size))
    if not found:
        return Trials(none, none)
    scores, guesses = (torch.cat([getattr(t, name).double().cpu() for t in found]) for name in ("scores", "guesses"))
    if found[0].logits is None:
        return Trials(scores, guesses)
    logits, labels = (torch.cat([getattr(t, name).cpu() for t in found]) for name in ("logits", "labels"))
    return Trials(scores, guesses, logits, labels)


def _looks(client: Client, training: bool) -> Tensor:
    client.model.eval()
    task, size = able(client.task, Accountable), 4 * client.config.batch_size
    examples, found, seen = client.data.train if training else client.data.test, [], 0
    drawn = torch.Generator().manual_seed(0) if training and len(examples) > LOOKED_AT else None
    with torch.no_grad():
        for looks in task.looks(client.model, examples, size, drawn):
            found.append(projected(looks))
            seen += len(looks)
            if training and seen >= LOOKED_AT:
                break
    return torch.cat(found) if found else torch.zeros(0, 1, dtype=torch.float64)
