"""What a reply to an order may hold, by what task, method or question declare: names, forms and ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fedreel.config import PrivacyConfig
from fedreel.core.method import Method
from fedreel.core.task import Task
from fedreel.core.trust import QUESTIONS
from fedreel.core.update import EVALUATE, SECURE, TRAIN, Answer, Order

_MOST = 1 << 24  # bytes of a message of a secure sum
TESTED = "n"  # how many samples a test was made with: every test says it
TENSORS = (
    "weights",
    "features",
    "feature-statistics",
    "raw-samples",
    "masked-sum",
)  # kinds that are tensors and never numbers
NUMBERS = ("count", "loss", "derived-number")  # kinds that are numbers and never tensors; the rest may be either
PER_SAMPLE = ("features", "raw-samples")  # of these each client has as many rows as it likes
RANGES: Mapping[str, tuple[float, float]] = {  # of numbers, and of what is in tensors, by kind
    "loss": (-1e4, 1e12),
    "metric": (-1e12, 1e12),
    "derived-number": (-1e12, 1e12),
    "label-statistics": (0.0, 1e15),
}


@dataclass(frozen=True)
class Declared:
    """Names with their kinds, which of them may be missing, and what else must be true of an answer: `problem` says
    what is not."""

    kinds: Mapping[str, str]
    optional: frozenset[str] = frozenset()
    problem: Callable[[Answer], str] | None = None
    trained: bool = False  # a client that has trained has used at least one sample, frame, category

    def range(self, name: str, max_count: float) -> tuple[float, float]:
        kind = self.kinds[name]
        least = 1.0 if self.trained and kind in ("count", "label-statistics") else 0.0
        low, high = RANGES.get(kind, (0.0, max_count))
        return max(low, least) if low >= 0 else low, high


def declared(method: Method, task: Task, order: Order, privacy: PrivacyConfig | None = None) -> Declared:
    """What the reply to an order may hold. A question that nobody has declared has no answer."""
    if privacy is not None and order.kind == TRAIN:
        return Declared({})
    if privacy is not None and order.kind == EVALUATE and (privacy.unit, privacy.tests) == ("example", "noised"):
        return Declared(dict.fromkeys(task.ranges, "metric"), frozenset(task.ranges))
    if order.kind == TRAIN:
        return Declared({**method.sends, **task.sends}, frozenset(method.may_lack), trained=True)
    if order.kind == EVALUATE:
        return Declared({**dict.fromkeys(task.metrics, "metric"), TESTED: "count"}, frozenset(task.metrics))
    if order.kind == SECURE:  # of which form they are, those who read them know
        names = ("head", "body") if order.trains else ("secure-message",)
        return Declared(dict.fromkeys(names, "masked-sum"), problem=_vector if order.trains else _message)
    asked = QUESTIONS.get(order.question) or getattr(method, order.question, None)
    return Declared(
        getattr(asked, "sends", {}), frozenset(getattr(asked, "may_lack", ())), getattr(asked, "problem", None)
    )


class Declarations:
    """What replies to the orders of a run may hold, looked up once for each kind of order."""

    def __init__(self, method: Method, task: Task, privacy: PrivacyConfig | None) -> None:
        self._of, self._known = (method, task, privacy), dict[tuple[str, str], Declared]()

    def __call__(self, order: Order) -> Declared:
        key = order.kind, order.question
        if key not in self._known:
            method, task, privacy = self._of
            self._known[key] = declared(method, task, order, privacy)
        return self._known[key]


def _message(answer: Answer) -> str:
    """What is wrong with a message of a secure sum, before anybody reads it."""
    text = answer.tensor("secure-message")
    return "" if text.ndim == 1 and text.dtype == torch.uint8 and len(text) <= _MOST else "no message, or a long one"


def _vector(answer: Answer) -> str:
    """What is wrong with a client's part of a secure sum."""
    head, body = answer.tensor("head"), answer.tensor("body")
    whole = head.dtype == torch.int64 and body.dtype in (torch.int32, torch.int64)
    return "" if whole and head.ndim == body.ndim == 1 else "no vector of integers"
