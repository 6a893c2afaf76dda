"""What may leave a client: kinds of information, a site's policy, the guard at its door, the ledger of departures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedreel.core.budget import PrivacyRules
from fedreel.core.chain import Chain
from fedreel.core.job_rules import JobRules
from fedreel.core.ledger import read_ledger
from fedreel.core.timing import Times
from fedreel.core.update import EVALUATE, TRAIN, Answer, Named, Order, Reply, Update
from fedreel.core.weights import Layout, TensorInfo, Weights
from fedreel.errors import FedreelError, PolicyError, RecipeError, nearest

if TYPE_CHECKING:
    from fedreel.core.task import ClientData

KINDS: dict[str, str] = {
    "name": "the client's name and that its data fit the job",
    "weights": "tensors of the model that the method's rule lets travel, or others in their shape",
    "noisy-weights": "such tensors, trained with noise that hides each single example",
    "masked-sum": "a model's change and numbers under masks that come off only the sum of a cohort, and keys for them",
    "count": "how many samples, frames or steps the client used",
    "loss": "a mean training loss",
    "metric": "a mean score on the client's own test data, or sums of scores",
    "derived-number": "a number computed from the data, such as a distance",
    "time": "how long the client trained, and how much of that it waited for its data",
    "label-statistics": "how often each label occurs",
    "feature-statistics": "sums over what many samples look like, and how many are how far from their mean",
    "features": "representations of single samples",
    "raw-samples": "samples themselves",
}
TIMES = {"times": "time"}


def check_kinds(sends: Mapping[str, str], who: str) -> None:
    """A kind that is not known could not be refused by any policy."""
    for name, kind in sends.items():
        if kind not in KINDS:
            raise FedreelError(
                f"{who} declares '{name}' as '{kind}', which is no kind of information",
                expected=", ".join(KINDS),
                hint=nearest(kind, KINDS),
            )


@dataclass(frozen=True)
class Policy:
    """A site's own rules, on top of every method's. Read from a TOML file of the same keys."""

    refuse: tuple[str, ...] = ()
    max_bytes: int = 0  # per departure; 0 = no limit
    min_samples: int = 0  # with fewer samples than this, nothing that came of them leaves
    min_cohort: int = 3  # fewer sites than this have no secure sum with this one among them
    jobs: JobRules = field(default_factory=JobRules)  # at real sites
    privacy: PrivacyRules = field(default_factory=PrivacyRules)  # at real sites

    def __post_init__(self) -> None:
        if self.min_cohort < 2:
            raise RecipeError("min_cohort is out of range", expected="2 or more", found=str(self.min_cohort))
        for kind in self.refuse:
            if kind not in KINDS:
                raise RecipeError(
                    f"a policy cannot refuse '{kind}'", expected=", ".join(KINDS), hint=nearest(kind, KINDS)
                )

    @staticmethod
    def read(path: Path) -> Policy:
        from fedreel.config import build, read_toml

        table = read_toml(path)
        return build(Policy, table, str(path))

    def check(self, kinds: Mapping[str, str], nbytes: int, samples: float | None) -> None:
        """Raise if this departure (name -> kind) is not allowed."""
        for name, kind in kinds.items():
            if kind in self.refuse:
                raise PolicyError(
                    f"this site lets no {kind} out, and '{name}' is that",
                    hint="choose a method that does not need it, or ask the site's owner to change `refuse`",
                )
        if self.max_bytes and nbytes > self.max_bytes:
            raise PolicyError(
                "this departure is larger than the site allows",
                expected=f"<= {self.max_bytes} bytes",
                found=f"{nbytes} bytes",
            )
        if self.min_samples and samples is not None and samples < self.min_samples:
            raise PolicyError(
                "too few samples stand behind this departure", expected=f">= {self.min_samples}", found=f"{samples:.0f}"
            )


class Ledger:
    """Append-only record of every departure. A layout's tensors are written once; departures refer to it. What belongs
    to a departure is written at once and whole, or nothing departs; several processes may keep one ledger."""

    def __init__(self, path: Path, run: str = "", *, head: Path | None = None) -> None:
        """`head` is a file to note the ledger's end in, so that a cut shows."""
        self.path, self.run = path, run
        self._chain = Chain(path, head)
        self._layouts: set[str] | None = None

    def write(
        self,
        order: Order,
        reply: Reply,
        kinds: Mapping[str, str],
        together: Sequence[str] = (),
        epsilon: float | None = None,
    ) -> None:
        """Note a departure, of a client or of several `together`; raises if that cannot be done. `epsilon` is what has
        been given away so far, where that is counted."""
        layout = _departing(reply)
        row = {
            "kind": "departure",
            **({"run": self.run} if self.run else {}),
            "time": round(time.time(), 3),
            "round": order.round,
            "client": order.client,
            "purpose": order.question or order.kind,
            "layout": layout.id if layout else None,
            "bytes": reply.nbytes,
            "numbers": reply.numbers,
            **({"times": reply.times.row()} if isinstance(reply, Update) and reply.times else {}),
            "kinds": sorted(set(kinds.values())),
            **({} if epsilon is None else {"epsilon": epsilon}),
            **({"together": [*together]} if together else {}),
        }
        if self._layouts is None:
            self._layouts = {row["id"] for row in read_ledger(self.path) if row["kind"] == "layout"}
        new = layout is not None and layout.id not in self._layouts
        self._chain.append([*([_described(layout)] if new and layout else []), row])
        if new and layout:
            self._layouts.add(layout.id)

    def sync(self) -> None:
        self._chain.sync()

    def close(self) -> None:
        self._chain.close()


def _described(layout: Layout) -> dict[str, object]:
    rows = [[t.name, list(t.shape), str(t.dtype).removeprefix("torch."), t.nbytes] for t in layout.tensors]
    return {"kind": "layout", "id": layout.id, "tensors": rows}


def _departing(reply: Reply) -> Layout | None:
    """All tensors that leave with a reply: the model's under their own names, others under theirs."""
    model = reply.weights.layout if isinstance(reply, Update) else Layout(())
    means = {f"by {name}": w for name, w in reply.means.items()} if isinstance(reply, Update) else {}
    if not reply.tensors and not means:
        return model if model.tensors else None
    beside: list[TensorInfo] = []
    for name, value in (*means.items(), *reply.tensors.items()):
        if isinstance(value, Weights):
            beside += [replace(t, name=f"{name}/{t.name}") for t in value.layout.tensors]
        else:
            beside.append(TensorInfo(name, tuple(value.shape), value.dtype))
    return Layout((*model.tensors, *beside))


class Door:
    """The guard at a client's door: only travelling tensors and what was declared pass; every passage is noted."""

    def __init__(self, travelling: Layout, policy: Policy, ledger: Ledger) -> None:
        self.travelling, self.policy, self.ledger = travelling, policy, ledger

    def check_order(self, kinds: Mapping[str, str]) -> None:
        """Refuse, before any work is done, an order whose answer could not leave."""
        self.policy.check(kinds, 0, None)

    def check_samples(self, kind: str, data: ClientData) -> None:
        """Refuse, before any work is done, an order of this kind if too few samples stand behind its answer. A question
        may look at any part of the data."""
        if self.policy.min_samples:
            parts = {TRAIN: (data.train,), EVALUATE: (data.test,)}
            counts = [len(part) for part in parts.get(kind, (data.train, data.test))]
            self.policy.check({}, 0, min((n for n in counts if n), default=0))

    def allowed(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """What of an answer may leave, where the rest can be left out."""
        return {name: kind for name, kind in kinds.items() if kind not in self.policy.refuse}

    def release_update(
        self,
        order: Order,
        weights: Weights,
        numbers: dict[str, float],
        tensors: dict[str, Named],
        declared: Mapping[str, str],
        coded: Weights | None = None,
        means: Mapping[str, Weights] | None = None,
        together: tuple[str, ...] = (),
        carried: bool = True,
        *,
        kind: Mapping[str, str],
        epsilon: float | None = None,
        times: Times | None = None,
    ) -> Update:
        """The update that leaves, as it is or `coded`, whose model is of this `kind`; raises if anything in it may not.
        Where it is the mean of several clients `together`, or several `means`, the bytes are `carried` by one of their
        updates. `epsilon` is what has been given away so far, this included, where that is counted. `times` leave
        unless the policy refuses them."""
        if weights.layout != self.travelling:
            extra = sorted(set(weights) - set(self.travelling.place))
            raise FedreelError("tensors that do not travel were about to leave the client", found=", ".join(extra[:5]))
        leaving = weights if coded is None else coded
        update = Update(*order.key, order.client, leaving, numbers, tensors, dict(means or {}), None if carried else 0)
        told = self.allowed({} if times is None else TIMES)
        update.times = times if told else None
        self._release(order, update, declared, {**kind, **told}, together, epsilon)
        return update

    def release_answer(
        self,
        order: Order,
        numbers: dict[str, float],
        tensors: dict[str, Named],
        declared: Mapping[str, str],
        epsilon: float | None = None,
    ) -> Answer:
        """The answer that leaves; raises if anything in it may not."""
        answer = Answer(order.round, order.step, order.client, numbers, tensors)
        self._release(order, answer, declared, {}, epsilon=epsilon)
        return answer

    def _release(
        self,
        order: Order,
        reply: Reply,
        declared: Mapping[str, str],
        kinds: Mapping[str, str],
        together: tuple[str, ...] = (),
        epsilon: float | None = None,
    ) -> None:
        names = [*reply.numbers, *reply.tensors]
        for name in names:
            if name not in declared:
                what = "number" if name in reply.numbers else "tensor"
                raise FedreelError(
                    f"the {what} '{name}' was not declared and may not leave the client",
                    expected=", ".join(declared),
                    hint="declare it in the method's or task's `sends`",
                )
        kinds = {**kinds, **{name: declared[name] for name in names}}
        self.policy.check(kinds, reply.nbytes, reply.numbers.get("samples"))
        self.ledger.write(order, reply, kinds, together, epsilon)
