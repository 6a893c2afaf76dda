"""Secure sums in one process: of the protocol alone, and of the toy, with clients that get lost in any phase."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.config import RoundConfig, SecureConfig
from fedreel.core.discretion import PartDiscretion
from fedreel.core.federation import Federation
from fedreel.core.method import Method
from fedreel.core.plan import Plan
from fedreel.core.privacy import ClientPrivacy
from fedreel.core.secure.collector import Collector
from fedreel.core.secure.crypto import new_signing_key, public_line
from fedreel.core.secure.identity import KeyRing
from fedreel.core.secure.masks import Vector
from fedreel.core.secure.messages import Session
from fedreel.core.secure.party import Kept, Party
from fedreel.core.secure.rounds import SecureSums
from fedreel.core.secure.work import make_form, simulated_sums
from fedreel.core.update import Failure, Order, Result
from fedreel.engines.local import LocalEngine
from fedreel.privacy.noise import Secret
from support.synthetic import PHASES
from support.toy import Notes, Toy, make_worker

SENT = bytes(32)


@cache
def rings(count: int) -> dict[str, KeyRing]:
    """A site for each client, each of which knows all others."""
    keys = {f"c{i}": new_signing_key() for i in range(count)}
    lines = {name: public_line(key) for name, key in keys.items()}
    return {name: KeyRing.of(name, key, lines) for name, key in keys.items()}


def session(count: int, **changes: object) -> Session:
    given = {"run": "r", "start": 1, "round": 1, "cohort": tuple(sorted(rings(count))), "by": ("equal",)}
    return Session(**{**given, **changes})  # type: ignore[arg-type]


@dataclass
class Disk:
    """What a client has written, as text: each answer comes from a party that has just been made of it."""

    client: str
    min_cohort: int = 3
    ring: KeyRing | None = None
    text: str = field(default_factory=lambda: Kept().text())

    def party(self, count: int) -> Party:
        def save(kept: Kept) -> None:
            self.text = kept.text()

        return Party(self.client, self.ring or rings(count)[self.client], self.min_cohort, Kept.read(self.text), save)


def inputs(count: int, bits: int = 32, size: int = 5) -> dict[str, Vector]:
    """Any numbers: masks must not care."""
    chance = np.random.default_rng(count)
    kind = np.uint32 if bits == 32 else np.uint64
    return {
        f"c{i}": Vector(
            chance.integers(0, 2**64, 3, np.uint64), chance.integers(0, 2**bits, size, np.uint64).astype(kind)
        )
        for i in range(count)
    }


def total(vectors: Mapping[str, Vector], clients: Collection[str]) -> Vector:
    first = next(iter(vectors.values()))
    made = Vector(np.zeros_like(first.head), np.zeros_like(first.body))
    for client in clients:
        made.add(vectors[client])
    return made


def copied(vector: Vector) -> Vector:
    return Vector(vector.head.copy(), vector.body.copy())


@dataclass
class Sum:
    """A sum under way. `lost` says who is gone from which phase on."""

    count: int
    lost: Mapping[str, Collection[str]] = field(default_factory=dict)
    bits: int = 32
    session: Session = field(init=False)
    disks: dict[str, Disk] = field(init=False)

    def __post_init__(self) -> None:
        self.session = session(self.count)
        self.disks = {name: Disk(name) for name in rings(self.count)}
        self.vectors = inputs(self.count, self.bits)
        self.collector = Collector(self.session)
        self.left: list[str] = []

    def here(self, phase: str) -> list[str]:
        """Who answers in a phase, of those who have answered so far."""
        gone = {c for p in PHASES[: PHASES.index(phase) + 1] for c in self.lost.get(p, ())}
        return [name for name in self.disks if name not in gone]

    def say(self, client: str, answer: Callable[[Party], str]) -> str:
        return answer(self.disks[client].party(self.count))

    def until(self, phase: str) -> Sum:
        """Go through all phases before this one."""
        for name in PHASES[: PHASES.index(phase)]:
            getattr(self, f"do_{name}")()
        return self

    def do_keys(self) -> None:
        for client in self.here("keys"):
            self.collector.take_keys(client, self.say(client, lambda p: p.keys(self.session)))

    def do_shares(self) -> None:
        text = self.collector.directory.text
        for client in self.here("shares"):
            self.collector.take_shares(client, self.say(client, lambda p: p.shares(self.session, text)))

    def masked(self, client: str, sent: bytes = SENT) -> Vector:
        vector = copied(self.vectors[client])
        party = self.disks[client].party(self.count)
        party.receive(self.session, self.collector.delivery(client))
        party.mask(self.session, sent, (1, 1), vector)
        return vector

    def do_masked(self) -> None:
        self.left = self.here("masked")
        self.hidden = {client: self.masked(client) for client in self.left}

    def do_agree(self) -> None:
        text = '["' + '", "'.join(self.left) + '"]'
        for client in self.here("agree"):
            self.collector.take_signature(client, self.say(client, lambda p: p.agree(self.session, text)))

    def do_open(self) -> None:
        text = self.collector.signatures
        for client in self.here("open"):
            said = self.say(client, lambda p: p.open(self.session, text))
            self.collector.take_opened(client, said, self.left)

    def opened(self) -> Vector:
        """The sum, masks taken off."""
        self.until("open").do_open()
        found = total(self.hidden, self.left)
        self.collector.unmask(found, self.left, SENT)
        return found


class Losing:
    """An engine that loses the orders of some clients: (question, client), or (train, client)."""

    def __init__(self, inner: LocalEngine, lost: Collection[tuple[str, str]]) -> None:
        self.inner, self.lost, self.slots = inner, lost, 1
        self.clients, self.blueprint = inner.clients, inner.blueprint
        self.gone: deque[Failure] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def submit(self, order: Order) -> None:
        if (order.question or order.kind, order.client) in self.lost:
            self.gone.append(Failure(*order.key, order.client, "offline", "lost on purpose"))
        else:
            self.inner.submit(order)

    def next(self) -> Result | None:
        return self.gone.popleft() if self.gone else self.inner.next()


def federate_securely(
    folder: Path, method: Method, *, lost: Collection[tuple[str, str]] = (), secure: bool = True, **options: Any
) -> tuple[Federation, Notes]:
    """Run a method on the toy by secure sums, or plainly. Options: those of RoundConfig, and task, train, policy,
    settings, privacy (noise that clients make in parts)."""
    task, policy = options.pop("task", Toy(clients=10)), options.pop("policy", None)
    train, privacy = options.pop("train", None), options.pop("privacy", None)
    settings, start = options.pop("settings", SecureConfig(sums=True)), options.pop("start", 1)
    config = RoundConfig(**{"rounds": 1, "evaluate_every": 0, "repeat": 0, "min_answers": 0.5, **options})
    worker = make_worker(folder, method, task, train, rounds=config.rounds, policy=policy)
    sums = noise = disclosure = None
    if privacy is not None:
        worker.discretion = private = PartDiscretion(privacy, config, Secret.kept(folder / "clients.key"), None)
        noise, plan = private.parts, Plan.of(privacy, config, len(worker.population.clients))
        disclosure = ClientPrivacy(plan, task.ranges, Secret.of_seed(0), 0)
    if secure:
        worker.sums = simulated_sums(settings, "r", folder)
        form = partial(make_form, settings, task, method, worker.travelling, noise=noise)
        sums = SecureSums(form, folder / "secure" / "server", "r", start, True)
    engine, notes = Losing(LocalEngine(worker), lost), Notes()
    fed = Federation(engine, method, config, 0, watchers=[notes], sums=sums, disclosure=disclosure)
    method.run(fed)
    engine.close()
    return fed, notes
