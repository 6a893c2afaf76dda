"""How far a trained model is to be trusted, asked of its clients when the last round is over: a temperature for its
confidence, whether its answers beat guessing, and what the samples look like that it learned from.

Clients answer in sums over their samples. An owner's policy may refuse a part of them; then the rest is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedreel.core.abilities import Accountable, Trials, able
from fedreel.core.method import question
from fedreel.core.server import GLOBAL
from fedreel.core.update import Answer, Value
from fedreel.metrics.calibration import (
    TEMPERATURES,
    beats_chance,
    beats_guesses,
    best_temperature,
    binned,
    doubts,
    expected_calibration_error,
    loss_sums,
)
from fedreel.metrics.familiarity import Space, Sums, histogram, projected, threshold

if TYPE_CHECKING:
    from fedreel.core.client import Client
    from fedreel.core.federation import Federation

LOOKED_AT = 1000  # of a client's training samples, drawn where it has more
BORROWED = 20.0  # samples' worth of all clients' losses that the temperature of a client's own model is fitted with

Answered = Mapping[str, Value]


# the client's side


@question(
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
            halves = (slice(0, None, 2), slice(1, None, 2))
            answer["losses"] = torch.stack([loss_sums(held_out.logits[h], held_out.labels[h]) for h in halves])
    if "total" in allowed:
        sums = Sums.of(_looks(client, training=True))
        counts["learned"] = sums.samples
        answer |= {"total": sums.total, "products": sums.products}
    return {"samples": min(counts.values()), **counts, **answer}


@question(samples="count", before="metric", after="metric", distances="feature-statistics")
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
        held_out = _held_out(client)
        assert held_out.logits is not None and held_out.labels is not None
        samples = len(held_out.labels)
        first, second = (
            binned(held_out.logits[half::2], held_out.labels[half::2], float(temperatures[half])) for half in (0, 1)
        )
        answer |= {"before": binned(held_out.logits, held_out.labels, 1.0), "after": first + second}
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


# the server's side


@dataclass(frozen=True)
class Trust:
    """What the held-out samples of some clients say of a model; none where it is not known."""

    samples: int = 0  # held-out ones
    temperature: float | None = None
    before: Tensor | None = None  # bins of confidence, as the model has it
    after: Tensor | None = None  # with temperatures fitted to other samples
    score: float | None = None
    chance: float | None = None  # the score of guessing
    near_chance: bool | None = None
    farthest: float | None = None  # the distance beyond which a sample is unlike those of the training
    false_alarms: float | None = None  # how often a sample that is not unlike is beyond it
    space: Space | None = None

    def told(self) -> dict[str, Any]:
        """What is known, in plain values; all but the space, which is tensors."""
        plain = {
            name: getattr(self, name)
            for name in ("samples", "temperature", "score", "chance", "near_chance", "farthest", "false_alarms")
        }
        if self.before is not None and self.after is not None:
            plain |= {
                "ece_uncalibrated": expected_calibration_error(self.before),
                "ece": expected_calibration_error(self.after),
                "bins_uncalibrated": self.before.tolist(),
                "bins": self.after.tolist(),
            }
        return {name: value for name, value in plain.items() if value is not None}


@dataclass(frozen=True)
class Assessment:
    """Of each model that can be used, or of each client's own where a part of it never left the client."""

    models: dict[str, Trust] = field(default_factory=dict)
    clients: dict[str, Trust] = field(default_factory=dict)
    used: tuple[str, ...] = ()  # the models by which every client is answered once; all clients' own, where they have

    def __bool__(self) -> bool:
        return bool(self.models or self.clients)

    def told(self) -> dict[str, Any]:
        named = {"models": self.models, "clients": self.clients}
        units = {kind: {name: t.told() for name, t in units.items()} for kind, units in named.items() if units}
        return {"overall": self.overall(), **units}

    def overall(self) -> dict[str, Any]:
        """All that are used, taken together."""
        parts = [*self.clients.values()] or [self.models[name] for name in self.used]
        if len(parts) == 1:
            whole = parts[0]
        else:
            scored = [p for p in parts if p.score is not None and p.chance is not None]
            n = sum(p.samples for p in scored)
            whole = Trust(
                sum(p.samples for p in parts),
                before=_added(p.before for p in parts),
                after=_added(p.after for p in parts),
                score=sum(p.samples * (p.score or 0.0) for p in scored) / n if n else None,
                chance=sum(p.samples * (p.chance or 0.0) for p in scored) / n if n else None,
            )
        return whole.told()

    def tensors(self) -> dict[str, Tensor]:
        """What of it is no plain value, by names for a file."""
        spaces = {
            f"{kind}/{name}": t.space for kind in ("models", "clients") for name, t in getattr(self, kind).items()
        }
        return {
            f"{place}/{what}": getattr(space, what).float().contiguous()
            for place, space in spaces.items()
            if space is not None
            for what in ("mean", "whitening")
        }


def assess(fed: Federation, card: Mapping[str, Any], private: bool, described: Mapping[str, Any]) -> Assessment:
    """Ask the clients of a federation whose rounds are over. `card` says who is answered by which model, `private`
    whether a part of it never left the clients, `described` how often each class is held out, where the data lie in
    one place."""
    began, spent = time.monotonic(), fed.finish()
    found = _assessed(fed, card, private, described)
    seconds = time.monotonic() - began
    fed.record("trust", **found.told(), bytes_testing=spent.bytes_up + spent.bytes_down, seconds=seconds)
    return found


def model_for(card: Mapping[str, Any], client: str) -> str:
    """The name of the model that answers a client, or those who name nobody (''), by what its card says."""
    return card.get("communities", {}).get(client) or card.get("recognize", GLOBAL)


def _assessed(fed: Federation, card: Mapping[str, Any], private: bool, described: Mapping[str, Any]) -> Assessment:
    groups = _groups(fed, card, private)
    asked = {name: _ask_sums(fed, fed.models[name], clients) for name, clients in groups.items()}
    whole = _together([sums for one in asked.values() for sums in one.values()])
    found = Assessment(used=tuple(groups if private else [*groups][1:] or groups))
    for name, sums in asked.items():
        units = {c: [c] for c in sums} if private else {name: [*sums]}
        for unit, clients in units.items():
            mine = _together([sums[c] for c in clients])
            trust = _trust(fed, name, clients, mine, whole if private else None)
            trust = _against_guessing(trust, mine, _commonest(described, clients))
            (found.clients if private else found.models)[unit] = trust
    return found


@dataclass(frozen=True)
class _Sums:
    """What the first question brought, of one client or of several."""

    held_out: int = 0
    losses: Tensor | None = None
    scores: Tensor | None = None
    looks: Sums | None = None


def _groups(fed: Federation, card: Mapping[str, Any], private: bool) -> dict[str, list[str]]:
    """Who is asked about which model. The first is that of those who name nobody: everybody is asked about it, unless
    each client has a model of its own."""
    groups: dict[str, list[str]] = {} if private else {model_for(card, ""): [*fed.clients]}
    for client in fed.clients:
        name = model_for(card, client)
        if private and client in fed.progress.trained:
            groups.setdefault(name, []).append(client)
        elif not private and name != model_for(card, ""):
            groups.setdefault(name, []).append(client)
    return groups


def _ask_sums(fed: Federation, weights: Any, clients: Sequence[str]) -> dict[str, _Sums]:
    answers = fed.ask(clients, calibration_sums.__name__, weights, at_least=0.0)
    return {answer.client: _read(answer) for answer in answers}


def _read(answer: Answer) -> _Sums:
    given = answer.tensors
    looks = Sums(answer["learned"], answer.tensor("total"), answer.tensor("products")) if "total" in given else None
    losses, scores = (answer.tensor(name) if name in given else None for name in ("losses", "scores"))
    held_out = int(answer.numbers.get("held_out", 0))
    return _Sums(held_out, losses, scores, looks)


def _together(parts: Sequence[_Sums]) -> _Sums:
    looks = [part.looks for part in parts if part.looks is not None and part.looks.samples]
    return _Sums(
        sum(part.held_out for part in parts),
        _added(part.losses for part in parts),
        _added(part.scores for part in parts),
        None if not looks else _reduced(looks),
    )


def _trust(fed: Federation, model: str, clients: Sequence[str], mine: _Sums, everybody: _Sums | None) -> Trust:
    """The second question, at what the first one gave."""
    args: dict[str, Value] = {}
    temperature = None
    if mine.losses is not None and (mine.held_out or (everybody and everybody.held_out)):
        first, second = (_fitted(mine, everybody, half) for half in (0, 1))
        temperature = _fitted(mine, everybody)
        args["temperatures"] = torch.tensor([second, first], dtype=torch.float64)
    space = mine.looks.space() if mine.looks is not None else None
    if space is not None:
        args |= {"mean": space.mean, "whitening": space.whitening}
    trust = Trust(mine.held_out, temperature, space=space)
    if not args or not mine.held_out:
        return trust
    answers = list(fed.ask(clients, calibration_bins.__name__, fed.models[model], at_least=0.0, **args))
    before, after, distances = (
        _added(a.tensor(name) for a in answers if name in a.tensors) for name in ("before", "after", "distances")
    )
    if distances is not None and distances.sum():
        farthest, alarms = threshold(distances)
        trust = replace(trust, farthest=farthest, false_alarms=alarms)
    return replace(trust, before=before, after=after)


def _fitted(mine: _Sums, everybody: _Sums | None, half: int | None = None) -> float:
    """The temperature of these losses, or of every other sample's. Where clients have models of their own, their few
    samples are not enough: a little of what everybody's say is added."""

    def losses(sums: _Sums) -> Tensor:
        assert sums.losses is not None
        return sums.losses.sum(0) if half is None else sums.losses[half]

    total = losses(mine) + doubts()
    if everybody is not None and everybody.losses is not None:
        samples = everybody.held_out if half is None else everybody.held_out / 2
        total = total + losses(everybody) * (BORROWED / samples)
    return best_temperature(total.tolist())


def _against_guessing(trust: Trust, mine: _Sums, commonest: float) -> Trust:
    """Guessing is at random or, where that is known to be better, always the commonest class."""
    if mine.scores is None or not mine.held_out:
        return trust
    n = mine.held_out
    score, guess, squares = mine.scores.tolist()
    if mine.losses is None:
        beats = beats_guesses(score - guess, squares)
    else:
        guess = max(guess, commonest * n)
        beats = beats_chance(round(score), n, guess / n)
    return replace(trust, score=score / n, chance=guess / n, near_chance=not beats)


def _commonest(described: Mapping[str, Any], clients: Sequence[str]) -> float:
    """The share of these clients' held-out samples that are of the commonest class; 0 where that is not known."""
    counts = [described.get("test", {}).get(client, []) for client in clients]
    classes = [sum(column) for column in zip(*counts)]
    return max(classes) / sum(classes) if sum(classes) else 0.0


def _added(parts: Any) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).sum(0) if known else None


def _reduced(looks: Sequence[Sums]) -> Sums:
    total = looks[0]
    for one in looks[1:]:
        total = total + one
    return total
