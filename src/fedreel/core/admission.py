"""What a server accepts: an open order, the current round, what was declared, in its range, near what was sent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from fedreel.core.declared import NUMBERS, PER_SAMPLE, RANGES, TENSORS, TESTED, Declared
from fedreel.core.transfer.coded import Coded
from fedreel.core.transfer.codes import Damaged
from fedreel.core.update import EVALUATE, TRAIN, Answer, Failure, Moved, Named, Order, Reply, Update
from fedreel.core.weights import Layout, Weights
from fedreel.errors import plain

LOOSE = 100.0  # times as much as the sent model's length: how far running statistics may move whatever `max_change` is
PINNED = ("samples", "frames", TESTED)  # how many data a client has: they do not become more in the course of a run

R = TypeVar("R", Answer, Update)


class Refused(Exception):
    """Why a reply is not admitted: a reason, which is counted, and what exactly is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, detail


class Admission:
    """Checks replies against the orders that are open. `max_change` bounds ||update - sent|| / (1 + ||sent||) of what
    is trained, and so whatever else comes in its shape; running statistics, which leap in a first round, have a bound
    of their own. No count is above `max_count`, nor above what its client said first."""

    def __init__(
        self,
        travelling: Layout,
        max_change: float,
        declare: Callable[[Order], Declared],
        max_count: float = 1e9,
        coded: Coded | None = None,
    ) -> None:
        self.travelling, self.max_change, self.declare, self.max_count = travelling, max_change, declare, max_count
        self.coded = coded  # how updates come, if not as they are
        self._open: dict[tuple[int, int], Order] = {}
        self._round = 0
        self.lasting = False  # whether orders stay open when a round ends
        self._yardstick = Yardstick()
        self._told: dict[tuple[str, str, str], float] = {}  # client, kind of order, name -> what it said first

    def expect(self, order: Order) -> None:
        if order.round != self._round and not self.lasting:
            self._open.clear()
        self._round = max(order.round, self._round) if self.lasting else order.round
        self._open[order.key] = order

    def close(self, key: tuple[int, int]) -> None:
        """Give an order up: an answer that still comes is refused."""
        self._open.pop(key, None)

    def judge(self, reply: Reply) -> Failure | None:
        """None if the reply is admitted (its order is then closed), otherwise why it is not. An answer to no open
        order leaves the open ones as they are."""
        try:
            self._check(reply)
        except Refused as no:
            return Failure(reply.round, reply.step, reply.client, no.reason, no.detail)
        except Exception as error:  # whatever a site sends, it does not end the others' run
            found = plain(f"{type(error).__name__}: {error}", 200)
            return Failure(reply.round, reply.step, reply.client, "rubbish", f"the answer cannot be judged ({found})")
        return None

    def _check(self, reply: Reply) -> None:
        order = self._open.get((reply.round, reply.step))
        if order is None and reply.round != self._round:
            raise Refused("stale", f"answers round {reply.round}, the current round is {self._round}")
        if order is None or order.client != reply.client:
            raise Refused("duplicate", "no such order is open for this client: it was answered or given up before")
        del self._open[order.key]
        may = self.declare(order)
        _check_names(reply, may)
        if self.coded is not None and order.kind == TRAIN and isinstance(reply, Update):
            self._decode(self.coded, order, reply)
        for name, value in reply.numbers.items():
            self._check_number(order, name, value, may)
        for name, tensor in reply.tensors.items():
            self._check_tensor(order, name, tensor, may)
        if order.kind == TRAIN:
            if not isinstance(reply, Update):
                raise Refused("names", "the answer to a training order must carry a model")
            if {*reply.means} != {*order.together[1:]}:
                raise Refused("names", "other means than those that were asked for")
            for weights in (reply.weights, *reply.means.values()):
                self._check_weights(order, weights, reply.moved)
        elif may.problem is not None and (text := may.problem(_answer(reply))):
            raise Refused("range", text)
        for name in PINNED:
            if name in reply.numbers and order.kind in (TRAIN, EVALUATE):
                self._told.setdefault((order.client, order.kind, name), reply.numbers[name])

    def _check_number(self, order: Order, name: str, value: float, may: Declared) -> None:
        if may.kinds[name] in TENSORS:
            raise Refused("names", f"'{name}' should be a tensor, found a number")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Refused("not-finite", f"number '{name}' is {plain(str(value), 60)}")
        low, high = may.range(name, self.max_count)
        if not low <= value <= high:
            raise Refused("range", f"number '{name}' is {value:g}, it must be from {low:g} to {high:g}")
        first = self._told.get((order.client, order.kind, name), math.inf)
        if value > first:
            raise Refused("range", f"number '{name}' is {value:g}, and was {first:g} when this client first said it")

    def _decode(self, coded: Coded, order: Order, update: Update) -> None:
        """From here on an update holds what its code stands for; how many bytes came is remembered."""
        update.carried = update.nbytes - 8 * len(update.numbers)
        try:
            update.weights = coded.read(order, update.weights, _difference)
            update.means = {by: coded.read(order, mean, _difference) for by, mean in update.means.items()}
            for name, tensor in update.tensors.items():
                if isinstance(tensor, Weights):
                    update.tensors[name] = coded.read_beside(tensor, _difference)
        except Damaged as damaged:
            raise Refused(damaged.reason, damaged.detail) from damaged

    def _check_tensor(self, order: Order, name: str, tensor: Named, may: Declared) -> None:
        """A tensor beside the model, or several: these are in the shape of what is trained."""
        kind = may.kinds[name]
        if kind in NUMBERS:
            raise Refused("names", f"'{name}' should be a number, found a tensor")
        if order.kind == TRAIN and isinstance(tensor, Weights) != (kind == "weights"):
            raise Refused("names", f"'{name}' should be {'' if kind == 'weights' else 'one tensor, not '}a model's")
        if isinstance(tensor, Weights) and tensor.layout != self.travelling.trained:
            reason, detail = _difference(self.travelling.trained, tensor.layout)
            raise Refused(reason, f"'{name}': {detail}")
        values = tensor.flat.values() if isinstance(tensor, Weights) else [tensor]
        if not all(bool(v.isfinite().all()) for v in values if v.is_floating_point()):
            raise Refused("not-finite", f"NaN or infinity in '{name}'")
        if isinstance(tensor, Weights):
            bound = self.max_change * (1.0 + self._yardstick.lengths(next(iter(order.models.values()), tensor))[0])
            if order.kind == TRAIN and (norm := tensor.norm()) > bound:
                raise Refused("norm", f"'{name}' is {norm:.3g} long, the bound is {bound:.3g}")
        elif kind in RANGES and tensor.numel():
            low, high = RANGES[kind]
            if float(tensor.min()) < low or float(tensor.max()) > high:
                raise Refused("range", f"'{name}' holds numbers that are not from {low:g} to {high:g}")

    def _check_weights(self, order: Order, weights: Weights, measured: Moved | None) -> None:
        if weights.layout is not self.travelling and weights.layout != self.travelling:
            raise Refused(*_difference(self.travelling, weights.layout))
        moved = measured
        if moved is None or moved.weights is not weights:  # others have taken their place since
            moved = self._yardstick.moved(order, weights)
        if not math.isfinite(moved.change):
            bad = [n for n, t in weights.items() if t.is_floating_point() and not bool(t.isfinite().all())]
            raise Refused("not-finite", f"NaN or infinity in {', '.join(bad[:3]) or 'the sum of squares'}")
        length, trained = self._yardstick.lengths(order.models[moved.model])
        all_trained = self.travelling.trained is self.travelling
        _check_move(moved.change, length, self.max_change if all_trained else max(self.max_change, LOOSE))
        if not all_trained:
            _check_move(moved.trained, trained, self.max_change)


class Yardstick:
    """How far models are from what was sent. Most orders of a round share one model, so the last is remembered."""

    def __init__(self) -> None:
        self._last: tuple[Weights, tuple[float, float]] | None = None

    def moved(self, order: Order, weights: Weights) -> Moved:
        """Of several models that were sent, the nearest counts."""
        apart = {name: weights.apart(sent) for name, sent in order.models.items()}
        model = next(iter(apart)) if len(apart) == 1 else min(apart, key=apart.__getitem__)
        return Moved(weights, model, *apart[model])

    def lengths(self, sent: Weights) -> tuple[float, float]:
        """Of a model that went out, and of what is trained of it."""
        if self._last is None or self._last[0] is not sent:
            self._last = sent, sent.lengths
        return self._last[1]


def _check_move(change: float, length: float, most: float) -> None:
    bound = most * (1.0 + length)
    if change > bound:
        raise Refused("norm", f"moved by {change:.3g} from what was sent, the bound is {bound:.3g}")


def agreeing(replies: Sequence[R], kinds: dict[str, str]) -> tuple[list[R], list[Failure]]:
    """Those of the replies to one question whose tensors have the dtype and shape that most have, and why the others
    do not count. Of samples everybody may have as many as he likes; of several shapes that are equally common, the
    first client's counts."""

    def form(name: str, tensor: Named) -> object:
        if isinstance(tensor, Weights):
            return tensor.layout.id
        return tensor.dtype, tensor.shape[1:] if kinds.get(name) in PER_SAMPLE and tensor.ndim else tensor.shape

    forms: dict[str, Counter[object]] = {}
    for reply in replies:
        for name, tensor in reply.tensors.items():
            forms.setdefault(name, Counter())[form(name, tensor)] += 1
    usual = {name: max(found, key=found.__getitem__) for name, found in forms.items()}
    kept: list[R] = []
    others: list[Failure] = []
    for reply in replies:
        odd = [name for name, tensor in reply.tensors.items() if form(name, tensor) != usual[name]]
        if odd:
            text = f"'{odd[0]}' is {_shape(reply.tensors[odd[0]])}, and that of most other clients is not"
            others.append(Failure(reply.round, reply.step, reply.client, "shape", text))
        else:
            kept.append(reply)
    return kept, others


def _check_names(reply: Reply, may: Declared) -> None:
    if not reply.tensors and reply.numbers.keys() == may.kinds.keys():
        return
    found = {*reply.numbers, *reply.tensors}
    extra, missing = sorted(found - {*may.kinds}), sorted({*may.kinds} - found - may.optional)
    if extra or missing or len(found) < len(reply.numbers) + len(reply.tensors):
        named = [", ".join(plain(str(n), 40) for n in some[:3]) or "none" for some in (missing, extra)]
        raise Refused("names", f"missing: {named[0]}; not declared: {named[1]} ({len(extra)} in all)")


def _answer(reply: Reply) -> Answer:
    if isinstance(reply, Update):
        raise Refused("names", "a model came in answer to a question that asks for none")
    return reply


def _shape(tensor: Named) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}" if isinstance(tensor, Tensor) else "several tensors"


def _difference(expected: Layout, found: Layout) -> tuple[str, str]:
    missing = [n for n in expected.place if n not in found.place]
    extra = [plain(n, 60) for n in found.place if n not in expected.place]
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
