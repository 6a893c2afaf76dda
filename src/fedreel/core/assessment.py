"""How far a trained model is to be trusted, by what its clients say when the last round is over: a temperature for its
confidence, whether its answers beat guessing, and when a sample is unlike those that it learned from."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedreel.core.disclosure import testers
from fedreel.core.server import GLOBAL
from fedreel.core.trust import calibration_bins, calibration_sums
from fedreel.core.update import Answer, Value
from fedreel.metrics.calibration import (
    beats_chance,
    beats_guesses,
    best_temperature,
    doubts,
    expected_calibration_error,
)
from fedreel.metrics.familiarity import Space, Sums, threshold

if TYPE_CHECKING:
    from fedreel.core.federation import Federation

BORROWED = 20.0  # samples' worth of all clients' losses that the temperature of a client's own model is fitted with

Groups = dict[str, list[str]]  # models, and the clients that are asked about each


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
    """Of each model that can be used and, where a part of it never left the clients, of each client's own; then what
    stands for the model is what is known of all of them together. `overall` is what the held-out samples of all clients
    say, each of the model that answers its client."""

    models: dict[str, Trust] = field(default_factory=dict)
    clients: dict[str, Trust] = field(default_factory=dict)
    overall: Trust = field(default_factory=lambda: Trust())

    def __bool__(self) -> bool:
        return bool(self.models)

    def told(self) -> dict[str, Any]:
        named = {"models": self.models, "clients": self.clients}
        units = {kind: {name: t.told() for name, t in units.items()} for kind, units in named.items() if units}
        return {"overall": self.overall.told(), **units}

    def tensors(self) -> dict[str, Tensor]:
        """What of it is no plain value, by names for a file."""
        units = {f"models/{name}": t for name, t in self.models.items()}
        units |= {f"clients/{name}": t for name, t in self.clients.items()}
        return {
            f"{place}/{what}": getattr(trust.space, what).float().contiguous()
            for place, trust in units.items()
            if trust.space is not None and trust.farthest is not None
            for what in ("mean", "whitening")
        }


def assess(fed: Federation, card: Mapping[str, Any], private: bool, described: Mapping[str, Any]) -> Assessment:
    """Ask the clients of a federation whose rounds are over. `card` says who is answered by which model, `private`
    whether a part of it never left the clients, `described` how often each class is held out, where the data lie in
    one place."""
    began, spent = time.monotonic(), fed.finish()
    asking = _Asking(fed, described)
    found = asking.own(card) if private else asking.shared(card)
    seconds = time.monotonic() - began
    fed.record("trust", **found.told(), bytes_testing=spent.bytes_up + spent.bytes_down, seconds=seconds)
    return found


def model_for(card: Mapping[str, Any], client: str) -> str:
    """The name of the model that answers a client, or those who name nobody (''), by what its card says."""
    return card.get("communities", {}).get(client) or card.get("recognize", GLOBAL)


@dataclass(frozen=True)
class _Sums:
    """What the first question brought, of one client or of several."""

    held_out: int = 0
    losses: Tensor | None = None
    scores: Tensor | None = None
    looks: Sums | None = None


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


@dataclass(frozen=True)
class _Asking:
    """Both questions, to clients by the models that answer them."""

    fed: Federation
    described: Mapping[str, Any]

    def shared(self, card: Mapping[str, Any]) -> Assessment:
        """Everybody is asked about the model of those who name nobody, and members of communities about theirs."""
        everybody = model_for(card, "")
        asked = self._some(self.fed.clients)
        groups: Groups = {everybody: asked}
        for client in asked:
            if (name := model_for(card, client)) != everybody:
                groups.setdefault(name, []).append(client)
        models, sums = {}, {}
        for name, clients in groups.items():
            sums[name] = self._sums({name: clients})
            models[name] = self._judged({name: [*sums[name]]}, _together([*sums[name].values()]))
        used = [name for name in groups if name != everybody] or [everybody]
        parts = [one for name in used for one in sums[name].values()]
        return Assessment(models, {}, self._overall(parts, [models[name] for name in used]))

    def own(self, card: Mapping[str, Any]) -> Assessment:
        """Each client that has trained is asked about its own model. What their samples look like is compared with
        those of all clients where a client has too few."""
        trained = self._some([client for client in self.fed.clients if client in self.fed.progress.trained])
        groups: Groups = {}
        for client in trained:
            groups.setdefault(model_for(card, client), []).append(client)
        sums = self._sums(groups)
        everybody = _together([*sums.values()])
        answered = {name: [c for c in clients if c in sums] for name, clients in groups.items()}
        whole = self._judged(answered, _Sums(everybody.held_out, looks=everybody.looks))
        units = {}
        for client, mine in sums.items():
            unit = self._judged({model_for(card, client): [client]}, mine, everybody)
            if unit.farthest is None:
                unit = replace(unit, farthest=whole.farthest, false_alarms=whole.false_alarms, space=whole.space)
            units[client] = unit
        overall = self._overall([*sums.values()], [*units.values()])
        told = replace(whole, score=overall.score, chance=overall.chance, near_chance=overall.near_chance)
        return Assessment({model_for(card, ""): told}, units, overall)

    def _some(self, clients: Sequence[str]) -> list[str]:
        """No more are asked than are asked to test."""
        return testers(clients, self.fed.config.test_clients, self.fed.seed, self.fed.round)

    def _sums(self, groups: Groups) -> dict[str, _Sums]:
        """The first question; what each client says that answers it."""
        return {
            answer.client: _read(answer)
            for name, clients in groups.items()
            for answer in self.fed.ask(clients, calibration_sums.__name__, self.fed.models[name], at_least=0.0)
        }

    def _judged(self, groups: Groups, mine: _Sums, everybody: _Sums | None = None) -> Trust:
        """The second question, at what the first one gave."""
        trust, args = _fits(mine, everybody)
        trust = _against_guessing(trust, mine, self._commonest([c for some in groups.values() for c in some]))
        if not args:
            return trust
        answers = [
            answer
            for name, clients in groups.items()
            for answer in self.fed.ask(clients, calibration_bins.__name__, self.fed.models[name], at_least=0.0, **args)
        ]
        before, after, distances = (
            _added(a.tensor(name) for a in answers if name in a.tensors) for name in ("before", "after", "distances")
        )
        farthest, alarms = (None, None) if distances is None else threshold(distances)
        return replace(trust, before=before, after=after, farthest=farthest, false_alarms=alarms)

    def _overall(self, sums: Sequence[_Sums], parts: Sequence[Trust]) -> Trust:
        """Guessing is as good as it is for each part."""
        if len(parts) == 1:
            return parts[0]
        together = _together(sums)
        guessed = sum(part.samples * (part.chance or 0.0) for part in parts) / max(together.held_out, 1)
        before, after = (_added(getattr(part, name) for part in parts) for name in ("before", "after"))
        return replace(_against_guessing(Trust(), together, guessed), before=before, after=after)

    def _commonest(self, clients: Sequence[str]) -> float:
        """The share of these clients' held-out samples that are of the commonest class; 0 where that is not known."""
        counts = [self.described.get("test", {}).get(client, []) for client in clients]
        classes = [sum(column) for column in zip(*counts)]
        return max(classes) / sum(classes) if sum(classes) else 0.0


def _fits(mine: _Sums, everybody: _Sums | None) -> tuple[Trust, dict[str, Value]]:
    """What the first question tells, and the second one's arguments."""
    args: dict[str, Value] = {}
    temperature = None
    if mine.losses is not None:
        first, second = (_fitted(mine, everybody, half) for half in (0, 1))
        temperature = _fitted(mine, everybody)
        args["temperatures"] = torch.tensor([second, first], dtype=torch.float64)
    space = _space(mine.looks) if mine.looks is not None else None
    if space is not None:
        args |= {"mean": space.mean, "whitening": space.whitening}
    return Trust(mine.held_out, temperature, space=space), args


def _space(looks: Sums) -> Space | None:
    try:
        return looks.space()
    except torch.linalg.LinAlgError:  # of sums that hardly any samples have
        return None


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


def _against_guessing(trust: Trust, mine: _Sums, known: float) -> Trust:
    """Guessing is at random or, where that is known to be better, as good as this: always the commonest class."""
    n = mine.held_out
    trust = replace(trust, samples=n)
    if mine.scores is None or not n:
        return trust
    score, guess, squares = mine.scores.tolist()
    if mine.losses is None:
        beats = beats_guesses(score - guess, squares)
    else:
        guess = max(guess, known * n)
        beats = beats_chance(round(score), n, guess / n)
    return replace(trust, score=score / n, chance=guess / n, near_chance=not beats)


def _added(parts: Any) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.stack(known).sum(0) if known else None


def _reduced(looks: Sequence[Sums]) -> Sums:
    total = looks[0]
    for one in looks[1:]:
        total = total + one
    return total
