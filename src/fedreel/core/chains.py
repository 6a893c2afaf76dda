"""Orders that wait for each other, and what is said when too few of them are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedreel.core.update import Failure, Value
from fedreel.core.weights import Weights
from fedreel.errors import Diverged, FedreelError, NoMemory, RunError


@dataclass
class Chain:
    """Clients in sequence: each starts from what its predecessor made."""

    clients: deque[str]
    models: Mapping[str, Weights]
    together: tuple[str, ...] = ()  # by what a site weighs its clients into means
    args: Mapping[str, Value] = field(default_factory=dict)  # for these clients alone


def too_few(round: int, needed: str, answered: str, failures: Sequence[Failure]) -> FedreelError:
    """Too few answers came, for these reasons; if all of them are numbers out of bounds, training has diverged, if all
    are of memory, there is too little of it."""
    reasons = {f.reason for f in failures}
    if reasons == {"memory"}:
        return NoMemory(
            f"round {round} had too little memory",
            expected=needed,
            found=f"{answered}. {failures[-1].client}: {failures[-1].detail}",
            hint="the last checkpoint stands: end what else uses the device, or take a smaller train.batch_size, and"
            " --resume",
        )
    last = {f.client: f"{f.client}: {f.reason} ({f.detail})" for f in failures}
    diverged = reasons <= {"diverged", "not-finite", "norm"}
    return (Diverged if diverged else RunError)(
        f"round {round} got too few answers",
        expected=needed,
        found=f"{answered}. {'; '.join([*last.values()][:5])}",
        hint="the last checkpoint stands: mend the clients and --resume, or lower round.min_answers",
    )
