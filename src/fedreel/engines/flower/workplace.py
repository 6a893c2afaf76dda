"""Where orders are carried out: frames in, frames out. One worker a run, kept warm; everything it needs to start cold
comes with each frame or lies on disk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedreel import __version__
from fedreel.config import Recipe, make_recipe
from fedreel.core.client import Worker
from fedreel.core.job_rules import Waiting
from fedreel.core.transfer.together import Together
from fedreel.core.update import Failure, Order, Reply, Result
from fedreel.engines.flower.fence import check_place, pass_fence
from fedreel.engines.flower.pipe import Frame
from fedreel.engines.flower.versions import Held, Lacking
from fedreel.engines.flower.wire import pack_results, unpack_orders
from fedreel.engines.local import attempt
from fedreel.errors import FedreelError
from fedreel.machine.files import file_name

Explain = Callable[[Exception], str] | None  # None: errors in full, for the machine where they happen


class Workplace:
    """Answers rosters (who is here, do the data fit) and orders."""

    def __init__(
        self,
        make: Callable[[Recipe, str], Worker],
        site: str,
        explain: Explain,
        fences: Path | None,
        permit: Callable[[Recipe, str], None] | None = None,
    ) -> None:
        """`make` builds a worker for a recipe and a run; `fences` is a folder in which to note how far each client is,
        so that an order that comes late does not undo what came after it. `permit` is asked before anything else, every
        time, and raises if there is to be no work for this recipe and run."""
        self.make, self.site, self.explain, self.fences, self.permit = make, site, explain, fences, permit
        self._warm: tuple[str, Mapping[str, Any], Worker] | None = None
        self._last: tuple[object, Frame] | None = None
        self._held = Held()

    def answer(self, frame: Frame) -> Frame:
        try:
            head = frame.head
            if self.permit is not None:
                self.permit(make_recipe(head["recipe"], "the server's recipe"), str(head["run"]))
            if head["type"] == "roster":
                return Frame(self._roster(head))
            return self._orders(frame)
        except Exception as error:
            waits = {"waiting": True} if isinstance(error, Waiting) else {}
            return Frame({"site": self.site, "problem": (self.explain or str)(error), **waits})

    def _roster(self, head: Mapping[str, Any]) -> dict[str, Any]:
        worker = self._worker(head)
        if worker.travelling.id != head["layout"]:
            raise FedreelError(
                f"the model built by this site's fedreel {__version__} has other tensors than the server's",
                expected=f"{len(worker.travelling.tensors)} tensors, {worker.travelling.nbytes} bytes",
                hint="install the same version on both sides",
            )
        if worker.blueprint.digest != head["frozen"]:
            raise FedreelError(
                "the part of the model that is not trained has other weights here than at the server",
                expected=f"the same file of weights as there, with the digest {str(head['frozen'])[:16]}",
                found=worker.blueprint.digest[:16],
                hint="task.backbone.init of the recipe says where it lies; random weights differ between processors",
            )
        clients = worker.population.clients
        agreed = worker.population.agreement()
        for client in clients:
            worker.introduce(client)
        worker.door.ledger.sync()
        return {"site": self.site, "clients": list(clients), "agreement": _digest(agreed), "fedreel": __version__}

    def _orders(self, frame: Frame) -> Frame:
        try:
            orders = unpack_orders(frame, self._held)
        except Lacking:
            return Frame({"site": self.site, "lacks": True})
        run, start = str(frame.head["run"]), int(frame.head["start"])
        this = (run, start, [(o.client, o.key) for o in orders])
        if self._last is not None and self._last[0] == this:
            return self._last[1]  # the same frame again: its answer got lost on the way
        worker = self._worker(frame.head)
        results, beside = self.carry_out(worker, frame.head, [_limited(worker, order) for order in orders])
        worker.store.sync()
        worker.door.ledger.sync()
        reply = pack_results(results, site=self.site, **beside)
        self._last = None if any(isinstance(r, Failure) for r in results) else (this, reply)
        return reply

    def carry_out(
        self, worker: Worker, head: Mapping[str, Any], orders: Sequence[Order]
    ) -> tuple[list[Result], dict[str, Any]]:
        """The results of one message's orders, and what is said beside them."""
        together = Together(worker)

        def work(order: Order) -> Reply:
            if self.fences is not None:
                check_place(worker, order)
                pass_fence(self.fences / file_name(str(head["run"])), worker.store, int(head["start"]), order)
            return worker.execute(order)

        results = [together.take(order, attempt(order, work, self.explain)) for order in orders]
        return together.finish(results, self.explain or str), {}

    def _worker(self, head: Mapping[str, Any]) -> Worker:
        run, recipe = str(head["run"]), head["recipe"]
        if self._warm is None or self._warm[:2] != (run, recipe):
            if self._warm is not None:
                self._warm[2].door.ledger.close()
            self._warm = None  # its memory first
            self._warm = (run, recipe, self.make(make_recipe(recipe, "the server's recipe"), run))
        return self._warm[2]


def for_others(error: Exception) -> str:
    """An error as it may leave a site: what is wrong in our words, nothing that was found in the data."""
    if isinstance(error, FedreelError):
        return f"{error.problem}; expected {error.expected}" if error.expected else error.problem
    return f"{type(error).__name__} (the site's log has the rest)"


def _limited(worker: Worker, order: Order) -> Order:
    """The order, with no more time than this place's policy has for one."""
    minutes = worker.door.policy.jobs.max_minutes
    return replace(order, limit=min(order.limit or math.inf, 60 * minutes)) if minutes else order


def _digest(agreed: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]
