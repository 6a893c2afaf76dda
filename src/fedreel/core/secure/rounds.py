"""The server's side of secure sums: a round's five questions, one after another, and the means that come of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedreel.core.aggregate import Average
from fedreel.core.secure.collector import Collector
from fedreel.core.secure.fixed import Form, SumAverage
from fedreel.core.secure.journal import Journal
from fedreel.core.secure.masks import Vector
from fedreel.core.secure.messages import MOST_BY, Session
from fedreel.core.secure.noise import Parts
from fedreel.core.secure.work import (
    AGREE,
    KEYS,
    MASKED,
    MESSAGE,
    OPEN,
    SESSION,
    SHARES,
    digest_of,
    make_form,
    packed,
    text_of,
    vector_of,
)
from fedreel.core.update import Answer, Failure, Value
from fedreel.core.weights import Layout, Weights
from fedreel.errors import FedreelError, RunError

if TYPE_CHECKING:
    from fedreel.core.federation import Federation
    from fedreel.core.job import Job

SIMULATED = (
    "secure sums of clients on one machine are a simulation: the run made all keys, and whoever reads its folder can "
    "open everything"
)


@dataclass
class SecureSums:
    """How the server of a run has its averages. `form` says what is summed, `folder` is for its notes; `run` and
    `start` as the job has them."""

    form: Callable[[Session], Form]
    folder: Path
    run: str
    start: int
    simulated: bool = False
    _last: int = field(default=0, init=False)

    def __call__(
        self,
        fed: Federation,
        clients: Sequence[str],
        models: Mapping[str, Weights],
        by: Sequence[str],
        at_least: float | None,
        args: Mapping[str, Value],
    ) -> list[Average]:
        """Every client trains from the model; the means of what they made, of which only the sum is known here."""
        if len(models) != 1 or len(by) > MOST_BY or self._last == fed.round:
            raise FedreelError(
                "under secure sums there is one sum a round, of one model, weighed in at most two ways",
                hint='a method that needs more of them declares `sees = "each"`',
            )
        self._last = fed.round
        if self.simulated and fed.round == 1:
            fed.record("note", text=SIMULATED)
        journal = Journal(self.folder, fed.round)
        session = self._session(journal, fed.round, clients, by)
        share = fed.config.min_answers if at_least is None else at_least
        return [*_Sum(fed, session, journal, self.form(session), models, args, share).averages()]

    def _session(self, journal: Journal, round: int, clients: Sequence[str], by: Sequence[str]) -> Session:
        """The sum that this round's clients know of, if the run was killed after it began."""
        fresh = Session(self.run, self.start, round, tuple(sorted(clients)), tuple(by))
        begun = journal.session
        if begun is None:
            journal.begin(fresh)
            return fresh
        if (begun.run, begun.cohort, begun.by) != (fresh.run, fresh.cohort, fresh.by):
            raise RunError(
                f"the sum of round {round} was begun with other clients",
                where=str(journal.folder),
                expected=", ".join(begun.cohort),
                found=", ".join(fresh.cohort),
                hint="a round has one sum: bring the same clients back and --resume, or start a new run",
            )
        return begun


def server_sums(job: Job, travelling: Layout, simulated: bool) -> SecureSums:
    """For the server of a job."""

    recipe = job.recipe
    noise = None if recipe.privacy is None else Parts.of(recipe.privacy, recipe.round)

    def form(session: Session) -> Form:
        return make_form(recipe.secure, job.task, job.method, travelling, session, noise)

    return SecureSums(form, job.out / "secure" / "server", job.run_id, job.start, simulated)


@dataclass
class _Sum:
    """One round's sum, as far as the journal says that it has come."""

    fed: Federation
    session: Session
    journal: Journal
    form: Form
    models: Mapping[str, Weights]
    args: Mapping[str, Value]
    at_least: float
    collector: Collector = field(init=False)

    def __post_init__(self) -> None:
        self.collector = Collector(self.session)

    def averages(self) -> list[SumAverage]:
        model = next(iter(self.models.values()))
        left = self._until_masked()
        total = self._opened(left)
        means = self.form.decode(total, model, len(left))
        bound = self.fed.config.max_change * (1.0 + model.norm())
        for mean in means:
            if (moved := mean.weights.distance(model.to("cpu"))) > bound:
                raise RunError(
                    f"the mean of round {self.session.round} is too far from what was sent",
                    expected=f"at most {bound:.3g} (round.max_change)",
                    found=f"{moved:.3g}",
                    hint="a client has sent something else than its part, and nobody can tell which",
                )
        self._note(total, left, means[0])
        return means

    def _until_masked(self) -> list[str]:
        """Keys, shares and masked vectors; who has sent the last."""
        sum_ = self.collector
        keys = self._ask(KEYS, dict.fromkeys(self.session.cohort, ""), sum_.take_keys)
        shares = self._ask(SHARES, dict.fromkeys(sorted(keys), sum_.directory.text), sum_.take_shares)
        if (left := self.journal.said(MASKED)) is None:
            left = self._masked({client: sum_.delivery(client) for client in sorted(shares)})
        return sorted(left)

    def _masked(self, messages: Mapping[str, str]) -> dict[str, str]:
        """The clients train. Their vectors are added up as they come; none is kept."""
        total, left = Vector.zeros(self.form.head, self.form.body, self.form.bits), dict[str, str]()
        self._restore_step()
        for answer in self._stream(MASKED, messages, self.models, self.args):
            vector = vector_of(answer)
            if (vector.head.shape, vector.body.shape, vector.body.dtype) != (
                total.head.shape,
                total.body.shape,
                total.body.dtype,
            ):
                self._refuse(answer, "a vector of another form")
                continue
            total.add(vector)
            left[answer.client] = ""
        self._check_enough(left)
        self.journal.note(MASKED, left, self.fed.step, total)
        return left

    def _opened(self, left: list[str]) -> Vector:
        """The sum with its masks taken off."""
        sum_, form = self.collector, self.form
        signed = self._ask(AGREE, dict.fromkeys(left, json.dumps(left)), sum_.take_signature)
        if self.journal.said(OPEN) is None:
            told = dict.fromkeys(sorted(signed), sum_.signatures)
            said = self._ask(OPEN, told, lambda c, text: sum_.take_opened(c, text, left), note=False)
            total = self.journal.total(MASKED, form.head, form.bits)
            sum_.unmask(total, left, digest_of(self.models, self.args))
            self.journal.note(OPEN, dict.fromkeys(said, ""), self.fed.step, total)
            self.journal.forget(MASKED)
        self._restore_step()
        return self.journal.total(OPEN, form.head, form.bits)

    def _ask(
        self, phase: str, messages: Mapping[str, str], take: Callable[[str, str], None], note: bool = True
    ) -> dict[str, str]:
        """What clients say in a phase: as noted, or now. An answer that `take` cannot read does not count."""
        if note and (before := self.journal.said(phase)) is not None:
            for client, text in sorted(before.items()):
                take(client, text)
            return before
        self._restore_step()
        said: dict[str, str] = {}
        for answer in self._stream(phase, messages):
            try:
                text = text_of(answer.tensors[MESSAGE])
                take(answer.client, text)
                said[answer.client] = text
            except ValueError as error:
                self._refuse(answer, str(error))
        self._check_enough(said)
        if note:
            self.journal.note(phase, said, self.fed.step)
        return said

    def _stream(
        self,
        phase: str,
        messages: Mapping[str, str],
        models: Mapping[str, Weights] | None = None,
        args: Mapping[str, Value] | None = None,
    ) -> Iterator[Answer]:
        """Answers as they come. As many must be there as the threshold says, and as the round wants."""
        wanted = math.ceil(self.at_least * len(self.session.cohort)) if phase in (KEYS, SHARES, MASKED) else 0
        needed = min(max(self._threshold, wanted), len(self.session.cohort))
        session = packed(self.session.text)
        own = {c: {**(args or {}), SESSION: session, MESSAGE: packed(text)} for c, text in messages.items()}
        return self.fed.secure(phase, own, models or {}, min(1.0, (needed - 0.5) / max(len(messages), 1)))

    @property
    def _threshold(self) -> int:
        """How many must answer; it is known for good when all keys are."""
        return self.collector.directory.threshold if self.journal.said(KEYS) else self.session.threshold

    def _check_enough(self, said: Mapping[str, object]) -> None:
        if len(said) < self._threshold:
            raise RunError(
                f"too few clients are left to open the sum of round {self.session.round}",
                expected=f"at least {self._threshold} of {len(self.session.cohort)}",
                found=str(len(said)),
                hint="the last checkpoint stands: mend the clients and --resume",
            )

    def _refuse(self, answer: Answer, why: str) -> None:
        self.fed.refuse(Failure(answer.round, answer.step, answer.client, "rubbish", why))

    def _restore_step(self) -> None:
        """Orders of the next phase have the numbers that they would have had if the run had not been killed."""
        if self.journal.step is not None:
            self.fed.step = self.journal.step

    def _note(self, total: Vector, left: list[str], first: SumAverage) -> None:
        clipped, capped = self.form.remarks(total)
        lost = [client for client in self.session.cohort if client not in left]
        self.fed.summed(left, first.means.get("loss"))
        self.fed.record("secure", parties=len(left), lost=lost, clipped=clipped, capped=capped, step=self.form.step)
        if clipped:
            self.fed.record("note", text=f"{clipped} numbers changed by more than secure.clip allows, and were clipped")
        if capped:
            text = f"{capped} clients would count for more than secure.weight_cap, and counted for that"
            self.fed.record("note", text=text)
