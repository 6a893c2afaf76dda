"""Which jobs of a server a site takes up unasked, and how large any job may be: [jobs] of its policy. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedreel.config import Recipe, check_ranges
from fedreel.errors import PolicyError


@dataclass(frozen=True)
class JobRules:
    """Numbers are limits, 0 for none. Without `allow`, every job waits until the site's owner has approved it."""

    allow: tuple[str, ...] = ()  # METHOD on TASK, each with * for any; or a job's digest
    max_rounds: int = 0
    max_epochs: int = 0  # of one training, whatever the method makes of it
    max_minutes: float = 0.0  # for one order
    max_model_bytes: int = 0
    divisions: int = 1  # ways to divide a role's data for training and testing, in jobs that nobody approved

    def __post_init__(self) -> None:
        names = ("max_rounds", "max_epochs", "max_minutes", "max_model_bytes", "divisions")
        check_ranges(self, "jobs", **dict.fromkeys(names, (0, math.inf)))

    def allows(self, title: str, digest: str) -> bool:
        """Whether a job needs no approval: by its title (METHOD on TASK) or its digest."""
        return any(fnmatchcase(title, known) or (len(known) >= 12 and digest.startswith(known)) for known in self.allow)

    def check(self, recipe: Recipe) -> None:
        """Raise if the recipe says that the job is larger than any may be."""
        self.check_epochs(recipe.train.epochs)
        if self.max_rounds and recipe.round.rounds > self.max_rounds:
            raise PolicyError("this site allows fewer rounds", expected=f"<= {self.max_rounds} rounds")

    def check_epochs(self, epochs: int) -> None:
        if self.max_epochs and epochs > self.max_epochs:
            raise PolicyError("this site allows fewer epochs", expected=f"<= {self.max_epochs} epochs")

    def check_bytes(self, nbytes: int) -> None:
        """Of a job's whole model."""
        if self.max_model_bytes and nbytes > self.max_model_bytes:
            raise PolicyError("this site allows smaller models", expected=f"<= {self.max_model_bytes} bytes")


class Waiting(PolicyError):
    """A job waits for the approval of a site's owner."""
