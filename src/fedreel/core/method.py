"""The seam of a method: how clients cooperate. The server's side is `run`; the client's side is small and named."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from fedreel.core.abilities import Ability
from fedreel.core.exchange import check_kinds
from fedreel.core.task import Task
from fedreel.core.weights import TensorInfo

if TYPE_CHECKING:
    from fedreel.core.client import Client
    from fedreel.core.federation import Federation
    from fedreel.core.terms import Term

_F = TypeVar("_F", bound=Callable[..., Any])
Numbers = dict[str, float]


class Method(ABC):
    """Subclasses are frozen dataclasses; their fields are the recipe's [method] section.

    What a method declares is checked before any data are read, and `fedreel list methods` says it."""

    sends: ClassVar[Mapping[str, str]] = {"samples": "count", "loss": "loss"}  # beside the model: name -> kind
    may_lack: ClassVar[tuple[str, ...]] = ()  # names among these that not every update holds
    sees: ClassVar[Literal["sum", "each"]] = "sum"  # what the server learns of the clients' models (`fed.average`)
    needs: ClassVar[tuple[type[Ability], ...]] = ()  # what the task must be able to do
    tunes: ClassVar[tuple[str, ...]] = (
        "all",
        "norm",
        "lora",
        "head",
    )  # for what of a backbone is trained it makes sense
    waits: ClassVar[bool] = True  # for all clients of a round; else it needs the clock of the recipe's [world] section
    trains_server: ClassVar[bool] = False  # whether the server trains too, by the recipe's [server] section

    # the server's side

    @abstractmethod
    def run(self, fed: Federation) -> None:
        """The algorithm box, top to bottom."""

    def evaluate(self, fed: Federation) -> None:
        """How the state of a round is tested; several global models override this."""
        fed.evaluate(fed.weights)

    def card(self, fed: Federation) -> dict[str, Any]:
        """What a user of the trained models must know of how they came to be (which is for whom, ...)."""
        return {}

    # the client's side

    def travels(self, tensor: TensorInfo) -> bool:
        """Which tensors leave the client and come from the server; the others stay and persist there."""
        return True

    def local_training(self, client: Client) -> None:
        """What a client does with a training order. `client` holds the received weights, its data and its state. A
        method that only adds to the loss overrides `terms` instead."""
        client.fit(self.terms(client))

    def terms(self, client: Client) -> Sequence[Term]:
        """What is added to the loss where clients train once and do nothing beside it. It is made of what the client
        holds, which it leaves as it is."""
        return ()

    def local_test(self, client: Client) -> Numbers:
        """What a client does with a test; a method that keeps a model at the client tests that one."""
        return client.test()

    # both

    def comes_to(self) -> Method:
        """The plainest method that does the same: another one where these settings leave nothing of what this one
        adds, and settings that then play no part at their defaults."""
        return self

    def check(self, task: Task) -> None:  # noqa: B027 (most methods have nothing to check)
        """Raise a RecipeError if the settings of method and task do not go together."""


def question(
    may_lack: Collection[str] = (), problem: Callable[[Any], str] | None = None, /, **sends: str
) -> Callable[[_F], _F]:
    """Marks a method's function as a question that the server may `ask`; names and kinds of what the answer holds. Some
    names may be missing; `problem` says what is wrong with an answer, if anything is, before the method sees it."""

    check_kinds(sends, "a question")

    def mark(function: _F) -> _F:
        function.sends, function.may_lack = dict(sends), tuple(may_lack)  # type: ignore[attr-defined]
        function.problem = problem  # type: ignore[attr-defined]
        return function

    return mark
