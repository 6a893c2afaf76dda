"""A client's side of secure sums, as orders: what it keeps on disk, its training, and the vector that leaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedreel.config import SecureConfig
from fedreel.core.secure.fixed import Form
from fedreel.core.secure.identity import run_identity
from fedreel.core.secure.masks import Vector
from fedreel.core.secure.messages import Rubbish, Session
from fedreel.core.secure.noise import Parts
from fedreel.core.secure.party import Distrust, Identity, Kept, Party
from fedreel.core.secure.rules import parts
from fedreel.core.update import TRAIN, Answer, Order, Value, expect
from fedreel.core.weights import Layout, Weights
from fedreel.errors import PolicyError, RunError
from fedreel.machine.files import file_name, write_atomic

if TYPE_CHECKING:
    from fedreel.core.client import Worker
    from fedreel.core.method import Method
    from fedreel.core.task import Task

KEYS, SHARES, MASKED, AGREE, OPEN = "keys", "shares", "masked", "agree", "open"
PHASES = (KEYS, SHARES, MASKED, AGREE, OPEN)
SESSION, MESSAGE, HEAD, BODY = "secure-session", "secure-message", "head", "body"  # names in orders and answers
KIND = "masked-sum"


@dataclass(frozen=True)
class ClientSums:
    """What a worker needs to take part in secure sums. `identity` says who signs for a client; what clients keep is
    written to `folder`, and forced to the disk if `sync`."""

    config: SecureConfig
    run: str
    folder: Path
    identity: Callable[[str], Identity]
    sync: bool = True

    def answer(self, worker: Worker, order: Order) -> Answer:
        """Carry an order of a secure sum out."""
        if order.kind == TRAIN:
            raise PolicyError(
                "this job sums updates securely, so that no single one leaves",
                hint="the server's recipe has `sums = true` in [secure], and asks for something else",
            )
        worker.door.check_order({KIND: KIND})
        if order.client not in worker.population.names:
            raise RunError(f"there is no client '{order.client}' here")
        session = Session.read(text_of(order.args[SESSION]))
        if session.run != self.run or session.round != order.round:
            raise Distrust("the sum is of another run or round than the order")
        party = self._party(worker, order.client)
        message = text_of(order.args[MESSAGE])
        if order.question == MASKED:
            return self._masked(worker, order, session, party, message)
        if order.question == KEYS:
            worker.door.check_samples(TRAIN, worker.data_of(order.client))
            text = party.keys(session)
        elif order.question in (SHARES, AGREE, OPEN):
            text = getattr(party, order.question)(session, message)
        else:
            raise Rubbish("no such question")
        return worker.door.release_answer(order, {}, {MESSAGE: packed(text)}, {MESSAGE: KIND})

    def _masked(self, worker: Worker, order: Order, session: Session, party: Party, message: str) -> Answer:
        """Train, and let the masked change out. A repetition begins where the first time began, and must end there."""
        party.receive(session, message)
        args = {name: value for name, value in order.args.items() if name not in (SESSION, MESSAGE)}
        first = party.kept.order or [*order.key]
        training = Order(first[0], first[1], order.client, TRAIN, order.models, args, "", order.limit)
        client = worker.begin(training)
        trained, sent = worker.made(client, training), digest_of(order.models, args)
        trained = worker.discretion.part(client, trained, party.threshold(session), sent)
        noise = worker.discretion.parts
        form = make_form(self.config, worker.task, worker.method, worker.travelling, session, noise)
        beside = {name: expect(client.tensors[name], Weights, f"'{name}'") for name in form.beside}
        vector = form.encode(client.received, trained, beside, client.numbers)
        party.mask(session, sent, training.key, vector)
        worker.keep(client, training, worker.weights)
        spent = worker.discretion.spent(client)
        return worker.door.release_answer(order, {}, tensors_of(vector), {HEAD: KIND, BODY: KIND}, spent)

    def _party(self, worker: Worker, client: str) -> Party:
        path = self.folder / f"{file_name(client)}.json"

        def save(kept: Kept) -> None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(path, kept.text(), sync=self.sync)

        try:
            kept = Kept.read(path.read_text()) if path.exists() else Kept()
        except (OSError, ValueError, TypeError) as error:
            raise RunError(
                "what a client keeps of a secure sum cannot be read",
                where=str(path),
                found=str(error),
                hint="restore the file; without it this client takes part in no sum of this run any more",
            ) from error
        return Party(client, self.identity(client), worker.door.policy.min_cohort, kept, save)


def simulated_sums(config: SecureConfig, run: str, out: Path) -> ClientSums:
    """For clients on one machine: the run makes their keys, and all of it lies in the run's folder."""
    place = out / "secure"
    return ClientSums(config, run, place / "clients", lambda client: run_identity(place / "keys", client), False)


def make_form(
    config: SecureConfig, task: Task, method: Method, layout: Layout, session: Session, noise: Parts | None = None
) -> Form:
    """What is in a session's vectors: the same for the server and all clients. With noise there is a model alone, and
    how far its numbers go follows from clip and noise."""
    numbers, beside = parts(task, method) if noise is None else ({}, ())
    reach = config.clip if noise is None else noise.reach(session.threshold)
    if not set(session.by) <= {"equal", *numbers}:
        raise Rubbish("weights that clients of this job do not know")
    return Form(layout, numbers, beside, session.by, len(session.cohort), reach, config.bits, config.weight_cap)


def digest_of(models: Mapping[str, Weights], args: Mapping[str, Value]) -> bytes:
    """Of all that clients are sent to train from: it must be the same for all of them."""
    found = hashlib.sha256()
    for name, value in [*sorted(models.items()), *sorted(args.items())]:
        found.update(json.dumps([name, _kind(value)]).encode())
        for flat in value.flat.values() if isinstance(value, Weights) else [value] if isinstance(value, Tensor) else []:
            found.update(flat.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.digest()


def _kind(value: Value) -> object:
    if isinstance(value, Weights):
        return value.layout.id
    return [str(value.dtype), *value.shape] if isinstance(value, Tensor) else value


def packed(text: str) -> Tensor:
    """Text as a tensor of bytes, as answers may hold it."""
    return torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())


def text_of(value: object) -> str:
    """The text that was packed; ValueError if it is none."""
    packed = expect(value, Tensor, "a message of a secure sum")
    if packed.dtype != torch.uint8 or packed.ndim != 1:
        raise Rubbish("a message that is no bytes")
    return packed.numpy().tobytes().decode()


def tensors_of(vector: Vector) -> dict[str, Tensor | Weights]:
    signed = np.int32 if vector.body.itemsize == 4 else np.int64
    return {HEAD: torch.from_numpy(vector.head.view(np.int64)), BODY: torch.from_numpy(vector.body.view(signed))}


def vector_of(answer: Answer) -> Vector:
    head, body = answer.tensor(HEAD).numpy(), answer.tensor(BODY).numpy()
    return Vector(head.view(np.uint64), body.view(np.uint32 if body.itemsize == 4 else np.uint64))
