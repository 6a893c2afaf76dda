"""A site's clients in one mean: what leaves the site is the mean of their models, and each client's numbers.

The server adds that mean with each client's own weight. So its sum is the one that single models would have given,
up to rounding, and it counts, caps and judges numbers as ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fedreel.config import Recipe
from fedreel.core.aggregate import Average, Mean
from fedreel.core.client import Worker
from fedreel.core.method import Method
from fedreel.core.state import PrivateStore, State
from fedreel.core.update import Failure, Named, Order, Result, Update
from fedreel.core.weights import Layout, Weights
from fedreel.errors import PolicyError, RecipeError

_EMPTY = Weights(Layout(()), {})
_SITE = "site"  # whose remainder that of a mean is


def check_together(recipe: Recipe, method: Method) -> None:
    """Raise, before any data are read, if a mean of means would not be what the recipe asks for."""
    if recipe.transfer is None or not recipe.transfer.together:
        return
    if method.sees != "sum":
        raise RecipeError(
            f"{type(method).__name__} looks at each client's model, so a site cannot send the mean of several",
            where="[transfer] together",
            expected="false, or a method that sees sums only: fedreel list methods says which do",
        )
    if recipe.round.aggregation != "mean":
        raise RecipeError(
            f"{recipe.round.aggregation} of sites' means is not that of their clients' models",
            where="[transfer] together",
            expected='false, or round.aggregation = "mean"',
        )


def weighed_by(method: Method, by: Sequence[str]) -> tuple[str, ...]:
    """By what sites weigh their clients into means, one for each of these."""
    if len(by) > 1 and "weights" in method.sends.values():
        raise RecipeError(
            f"{type(method).__name__} sends tensors beside its model, and weighs models by {' and by '.join(by)}",
            where="[transfer] together",
            expected="false",
        )
    return tuple(by)


@dataclass
class _Group:
    """Clients whose models are averaged: those that were sent the same, to be weighed alike."""

    averages: list[Average]
    orders: list[Order] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


class Together:
    """The orders of one message at a site. Updates are added up as they come: there is one model in memory for each way
    to weigh them, whatever the number of clients."""

    def __init__(self, worker: Worker) -> None:
        self.worker, worker.gathers = worker, True
        self._groups: dict[object, _Group] = {}

    def take(self, order: Order, result: Result) -> Result:
        """Add an update of a client that is not to leave by itself; any other result stays as it is."""
        if not order.together or not isinstance(result, Update):
            return result
        key = (order.round, order.together, *map(id, order.models.values()))
        group = self._groups.setdefault(key, _Group([Average(by, Mean) for by in order.together]))
        for average in group.averages:
            average.add(result)
        result.weights, result.tensors = _EMPTY, {}
        group.orders.append(order)
        group.updates.append(result)
        return result

    def finish(self, results: Sequence[Result], explain: Callable[[Exception], str]) -> list[Result]:
        """The same results, those that were added up with the means of their groups in place of models. A mean that
        may not leave is a failure of each of its clients."""
        self.worker.gathers = False
        failed: dict[tuple[int, int], Failure] = {}
        for group in self._groups.values():
            try:
                self._release(group)
            except Exception as error:
                reason = "policy" if isinstance(error, PolicyError) else "error"
                for order in group.orders:
                    failed[order.key] = Failure(*order.key, order.client, reason, explain(error))
        return [failed.get((r.round, r.step), r) for r in results]

    def _release(self, group: _Group) -> None:
        worker, first = self.worker, group.orders[0]
        mean, *others = (average.weights for average in group.averages)
        means = dict(zip(first.together[1:], others))
        tensors: dict[str, Named] = {name: group.averages[0].tensors(name) for name in group.averages[0].names}
        coded = None
        if worker.coded is not None:
            kept = self._store.load(_SITE, first.key)
            state = State(dict(kept.tensors), dict(kept.numbers))
            coded = worker.coded.write(first, mean, state)
            means = {by: worker.coded.write(first, other, state, by) for by, other in means.items()}
            tensors = worker.coded.write_beside(first, tensors, state)
            if state:
                self._store.save(_SITE, group.orders[-1].key, state)
                self._store.sync()
        names = tuple(order.client for order in group.orders)
        for order, update in zip(group.orders, group.updates):
            made = worker.door.release_update(
                order,
                mean,
                update.numbers,
                tensors,
                worker.declared,
                coded,
                means,
                names,
                order is first,
                kind=worker.model_kind,
                times=update.times,
            )
            update.weights, update.tensors, update.means, update.times = (
                made.weights,
                made.tensors,
                made.means,
                made.times,
            )

    @cached_property
    def _store(self) -> PrivateStore:
        """What rounding leaves out of a mean is the site's, and no client's."""
        own = self.worker.store
        return PrivateStore(own.folder.with_name("together"), shared=own.shared, undone=own.undone)
