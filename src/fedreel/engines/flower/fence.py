"""How far each client of a run is: at a site no order undoes what came after it, nor goes beyond the job."""

from __future__ import annotations

import json
from pathlib import Path

from fedreel.core.aggregate import check_weighing
from fedreel.core.client import Worker
from fedreel.core.state import KEEP_ROUNDS, PrivateStore
from fedreel.core.task import EVERYONE
from fedreel.core.update import Order
from fedreel.errors import FedreelError
from fedreel.machine.files import file_name, write_atomic


def check_place(worker: Worker, order: Order) -> None:
    """Raise unless the order is for one of this site's clients, in one of the job's rounds or just after the last, and
    its models hold what travels: a server writes nothing over what stays with a client."""
    if order.client == EVERYONE or order.client not in worker.population.names:
        raise FedreelError("this site has no such client")
    if order.round > worker.rounds + 1:
        raise FedreelError(f"an order of round {order.round}", expected=f"at most {worker.rounds + 1}")
    if any(weights.layout != worker.travelling for weights in order.models.values()):
        raise FedreelError("a model of the order does not have the tensors that travel in this job")
    for by in order.together:
        check_weighing(by, [*worker.declared])


def pass_fence(folder: Path, store: PrivateStore, start: int, order: Order) -> None:
    """Note that the client has come to this order of the server's `start`; raise if it was further before. A server
    that has started anew may go back as far as clients keep what they have; where one has nothing, all the way."""
    path = folder / f"{file_name(order.client)}.fence"
    mine = [start, *order.key]
    *reached, furthest = _read(path)
    if mine < reached:
        raise FedreelError(
            f"order {order.key} of the server's start {start} comes too late: this client is at {tuple(reached)}"
        )
    if order.round < furthest - KEEP_ROUNDS and store.has(order.client):
        raise FedreelError(
            f"an order of round {order.round}, but this client has come to round {furthest} and keeps what is its own",
            expected=f"round {furthest - KEEP_ROUNDS} or later",
            where=str(store.folder / file_name(order.client)),
            hint="if the server's owner has restored an older run: move that folder away, and it starts afresh",
        )
    if mine > reached:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps([*mine, max(furthest, order.round)]))


def _read(path: Path) -> list[int]:
    """Start, round and step that were reached, and the furthest round of any start."""
    try:
        start, round, step, *furthest = map(int, json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return [0, 0, 0, 0]
    return [start, round, step, furthest[0] if furthest else round]
