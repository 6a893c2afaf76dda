"""What a server accepts: an open order, the current round, the right names, shapes and dtypes, sane numbers."""

from __future__ import annotations

import math

from fedreel.core.update import TRAIN, Failure, Named, Order, Reply, Update
from fedreel.core.weights import Layout, Weights

COUNTS = ("samples", "frames", "n")  # numbers that cannot be negative


class Admission:
    """Checks replies against the orders that are open. `max_change` bounds ||update - sent|| / (1 + ||sent||)."""

    def __init__(self, travelling: Layout, max_change: float) -> None:
        self.travelling, self.max_change = travelling, max_change
        self._open: dict[tuple[int, int], Order] = {}
        self._round = 0
        self._last_norm: tuple[Weights, float] | None = None

    def expect(self, order: Order) -> None:
        if order.round != self._round:
            self._open.clear()
            self._round = order.round
        self._open[order.key] = order

    def close(self, key: tuple[int, int]) -> None:
        """Give an order up: an answer that still comes is refused."""
        self._open.pop(key, None)

    def judge(self, update: Reply) -> Failure | None:
        """None if the reply is admitted (its order is then closed), otherwise why it is not. An answer to no open
        order leaves the open ones as they are."""

        def no(reason: str, detail: str) -> Failure:
            return Failure(update.round, update.step, update.client, reason, detail)

        if update.round != self._round:
            return no("stale", f"answers round {update.round}, the current round is {self._round}")
        order = self._open.get((update.round, update.step))
        if order is None or order.client != update.client:
            return no("duplicate", "no such order is open for this client: it was answered or given up before")
        del self._open[order.key]
        for name, value in update.numbers.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                return no("not-finite", f"number '{name}' is {value}")
            if value < 0 and name in COUNTS:
                return no("range", f"number '{name}' is {value}, it cannot be negative")
        for name, tensor in update.tensors.items():
            if (problem := self._problem(name, tensor)) is not None:
                return no(*problem)
        if order.kind != TRAIN:
            return None
        if not isinstance(update, Update):
            return no("names", "the answer to a training order must carry a model")
        return self._judge_weights(order, update.weights, no)

    def _problem(self, name: str, tensor: Named) -> tuple[str, str] | None:
        """What is wrong with a tensor beside the model, or with several: these are in the shape of what is trained."""
        if isinstance(tensor, Weights) and tensor.layout != self.travelling.trained:
            reason, detail = _difference(self.travelling.trained, tensor.layout)
            return reason, f"'{name}': {detail}"
        values = tensor.flat.values() if isinstance(tensor, Weights) else [tensor]
        if not all(bool(v.isfinite().all()) for v in values if v.is_floating_point()):
            return "not-finite", f"NaN or infinity in '{name}'"
        return None

    def _judge_weights(self, order: Order, weights: Weights, no) -> Failure | None:  # type: ignore[no-untyped-def]
        if weights.layout is not self.travelling and weights.layout != self.travelling:
            return no(*_difference(self.travelling, weights.layout))
        change, sent = min(((weights.distance(w), w) for w in order.models.values()), key=lambda pair: pair[0])
        if not math.isfinite(change):
            bad = [n for n, t in weights.items() if t.is_floating_point() and not bool(t.isfinite().all())]
            return no("not-finite", f"NaN or infinity in {', '.join(bad[:3]) or 'the sum of squares'}")
        bound = self.max_change * (1.0 + self._norm(sent))
        if change > bound:
            return no("norm", f"moved by {change:.3g} from what was sent, the bound is {bound:.3g}")
        return None

    def _norm(self, sent: Weights) -> float:
        if self._last_norm is None or self._last_norm[0] is not sent:  # most orders of a round share one model
            self._last_norm = (sent, sent.norm())
        return self._last_norm[1]


def _difference(expected: Layout, found: Layout) -> tuple[str, str]:
    missing = [n for n in expected.place if n not in found.place]
    extra = [n for n in found.place if n not in expected.place]
    if missing or extra:
        return (
            "names",
            f"missing: {', '.join(missing[:3]) or 'none'}; not expected: {', '.join(extra[:3]) or 'none'}",
        )
    for name, (t, _) in expected.place.items():
        other = found.place[name][0]
        if other.shape != t.shape:
            return "shape", f"'{name}' should be {t.shape}, found {other.shape}"
        if other.dtype != t.dtype:
            return "dtype", f"'{name}' should be {t.dtype}, found {other.dtype}"
    return "names", "the tensors come in another order"
