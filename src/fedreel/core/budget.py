"""What all jobs together have given away of a site's data: kept at the site, counted there, and never exceeded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

from fedreel.config import Recipe, check_ranges
from fedreel.errors import PolicyError, RunError
from fedreel.machine.files import file_name, write_atomic
from fedreel.machine.records import parse_json
from fedreel.privacy.accounting import Release, epsilon

Kind = Literal["train", "evaluate"]
_MOST_JOBS = 10_000


@dataclass(frozen=True)
class PrivacyRules:
    """[privacy] of a site's policy. With a `max_epsilon`, jobs without [privacy] are refused, and so is every order
    with which all jobs on the same data would come to more."""

    max_epsilon: float = 0.0  # 0: no limit
    delta: float = 1e-5
    unit: Literal["client", "example"] = "example"  # whose privacy it is; noise for clients is good for examples too

    def __post_init__(self) -> None:
        check_ranges(self, "privacy", max_epsilon=(0, math.inf), delta=(1e-300, 0.5))

    def check(self, recipe: Recipe) -> None:
        """Raise if a job cannot be counted."""
        config = recipe.privacy
        if config is not None and config.seeded:
            raise PolicyError("noise that follows from the recipe's seed hides nothing here", expected="seeded = false")
        if not self.max_epsilon:
            return
        if config is None:
            raise PolicyError("this site lets only private jobs work", expected="a section [privacy] in the recipe")
        if self.unit == "client" and config.unit != "client":
            raise PolicyError("this site's privacy is that of its clients", expected='[privacy] unit = "client"')
        if config.tests == "open":
            raise PolicyError("test results would leave without noise", expected="[privacy] tests = noised, or off")
        if config.unit == "client" and recipe.round.clients:
            raise PolicyError("how many clients there are in all is not known here", expected="[round] fraction")


class Budget:
    """A role's, in one file: client -> run and kind of order -> what was given away so far. An example is trained on or
    tested on; a client is both."""

    def __init__(self, path: Path, run: str, rules: PrivacyRules) -> None:
        self.path, self.run, self.rules = path, run, rules

    def charge(self, client: str, kind: Kind, release: Release, unit: str) -> float:
        """Note, before any work is done, that this run will have given away so much by orders of this kind; what all
        runs come to with it. Raises, and notes nothing, beyond the most."""
        noted = self._read()
        mine = {**noted.get(client, {}), f"{self.run}/{kind}/{unit}": release}
        total = self._total(mine)
        if self.rules.max_epsilon and total > self.rules.max_epsilon:
            raise PolicyError(
                "the privacy budget of this site's data would be exceeded",
                expected=f"epsilon at most {self.rules.max_epsilon:g} over all jobs, at delta {self.rules.delta:g}",
                found=f"{total:.3f}",
            )
        if len(mine) > _MOST_JOBS:
            raise PolicyError("too many jobs have drawn on this client's budget")
        if noted.get(client, {}).get(f"{self.run}/{kind}/{unit}") != release:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            table = {c: {k: astuple(r) for k, r in rows.items()} for c, rows in {**noted, client: mine}.items()}
            write_atomic(self.path, json.dumps(table))
        return total

    def spent(self) -> dict[str, float]:
        """What all jobs have come to, client by client."""
        return {client: self._total(rows) for client, rows in self._read().items()}

    def _total(self, rows: Mapping[str, Release]) -> float:
        """Of the unit that the rules are about: of an example, the worse of being trained on and being tested on."""
        of_client = [r for key, r in rows.items() if key.endswith("/client")]
        if self.rules.unit == "client":
            return epsilon(of_client, self.rules.delta)
        sides = [[r for key, r in rows.items() if key.endswith(f"/{kind}/example")] for kind in ("train", "evaluate")]
        return max(epsilon([*of_client, *side], self.rules.delta) for side in sides)

    def _read(self) -> dict[str, dict[str, Release]]:
        try:
            told = parse_json(self.path.read_text())
            return {client: {key: _release(row) for key, row in rows.items()} for client, rows in told.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise RunError(
                "the privacy budget cannot be read, so nothing may leave",
                where=str(self.path),
                found=str(error),
                hint="restore the file from a backup; without it all that was given away would be forgotten",
            ) from error


def _release(row: Sequence[float]) -> Release:
    noise, times, rate, pool = row
    return Release(float(noise), int(times), float(rate), int(pool))


def budget_file(site: Path, role: str) -> Path:
    """Where a site keeps that of a role."""
    return site / "budgets" / f"{file_name(role)}.json"
