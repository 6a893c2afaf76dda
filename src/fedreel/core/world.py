"""Time as it would pass on clients' own devices: a clock that only their work moves. Same seed, same times."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedreel.config import Recipe, WorldConfig
from fedreel.core.chains import Chain, too_few
from fedreel.core.method import Method
from fedreel.core.update import Failure
from fedreel.errors import DataError, RecipeError, RunError
from fedreel.machine.records import parse_json

MEMORY = "world"  # where the server's memory has the clock
GONE = "it was gone when its answer was due"
_TRIES = 64  # clients that are looked at for one who can be reached
_AT_ONCE = "method.in_flight says how many clients are at work at once"
_ANOTHER = "who does not come back is followed by another client"
_OF_ROUNDS_THAT_WAIT = {  # settings by section, and what there is in their place
    "round": {"fraction": _AT_ONCE, "clients": _AT_ONCE, "min_answers": _ANOTHER, "repeat": _ANOTHER},
    "world": {"over": _AT_ONCE, "deadline": "a round ends when its updates have come"},
}


@dataclass(frozen=True)
class Device:
    """What a client works on: seconds to train on one sample, bytes a second each way, and when it can be reached,
    from moment to moment of a period that begins again and again; no moments: always."""

    seconds: float
    line: float
    there: tuple[tuple[float, float], ...] = ()
    period: float = math.inf

    def reached(self, at: float) -> bool:
        within = at % self.period
        return not self.there or any(begin <= within <= end for begin, end in self.there)

    def next_reached(self, at: float) -> float:
        """The first moment from then on at which it can be reached."""
        if self.reached(at):
            return at
        begins = sorted(begin for begin, _ in self.there)
        within = at % self.period
        later = next((begin for begin in begins if begin >= within), begins[0] + self.period)
        return at - within + later


@dataclass(frozen=True)
class Trip:
    """An order on its way: when its client begins and when it would be back, and whether it comes."""

    client: str
    begins: float
    back: float
    lost: bool


class World:
    """The clients' devices and the clock. What a client takes depends on its device, how many samples it has and how
    large the model is; tests and questions take no time."""

    def __init__(
        self,
        config: WorldConfig,
        seed: int,
        samples: Callable[[str], float],
        epochs: int,
        devices: Sequence[Device] = (),
    ) -> None:
        self.config, self._seed, self._samples, self._epochs, self._devices = config, seed, samples, epochs, devices
        self._memory: dict[str, Any] = {"now": 0.0}

    def begin(self, memory: dict[str, Any]) -> None:
        """The server's memory, in which the clock is kept."""
        self._memory = memory.setdefault(MEMORY, {"now": 0.0})

    @property
    def now(self) -> float:
        return float(self._memory["now"])

    def move_to(self, moment: float) -> None:
        self._memory["now"] = max(self.now, moment)

    def device(self, client: str) -> Device:
        """A client's device: one of those in the file, or drawn. It depends on seed and name alone, so that a pool of
        a million costs nothing."""
        draw = np.random.default_rng([self._seed, 0xC10C4, zlib.crc32(client.encode())])
        if self._devices:
            return self._devices[int(draw.integers(len(self._devices)))]
        slowness, width = np.exp(draw.standard_normal(2) * (self.config.spread, self.config.line_spread))
        return Device(self.config.seconds * float(slowness), self.config.line * float(width))

    def trip(self, client: str, key: tuple[int, int], nbytes: float, at: float) -> Trip:
        """What becomes of an order to train that is given at a moment, of a model of so many bytes."""
        device = self.device(client)
        begins = device.next_reached(at)
        work = device.seconds * self._samples(client) * self._epochs
        back = begins + work + 2 * nbytes / device.line
        draw = np.random.default_rng([self._seed, 0xD809, zlib.crc32(client.encode()), *key])
        return Trip(client, begins, back, bool(draw.random() < self.config.drop) or not device.reached(back))

    def wanted(self, ordered: int) -> int:
        """Of so many that are ordered, how many are waited for."""
        return max(1, round(ordered / (1 + self.config.over)))

    def ordered(self, wanted: int, there: int) -> int:
        """So that as many come back in good time, how many are ordered."""
        return min(there, round(wanted * (1 + self.config.over)))

    def in_time(
        self, lanes: Sequence[Chain], round: int, share: float, refuse: Callable[[Failure], None]
    ) -> list[Chain]:
        """Those who are back when a round ends in which all wait for each other; nobody else is worked for. Raises if
        they are a smaller share of those who are waited for."""
        journeys = [([*lane.clients], sum(w.nbytes for w in lane.models.values())) for lane in lanes]
        first, late = self.round_trip(journeys, round)
        for failure in late:
            refuse(failure)
        needed = math.ceil(share * self.wanted(len(lanes)))
        if len(first) < needed:
            raise too_few(round, f"at least {needed} in time", f"{len(first)} of {len(lanes)}", late)
        return [lanes[i] for i in first]

    def round_trip(
        self, journeys: Sequence[tuple[Sequence[str], float]], round: int
    ) -> tuple[list[int], list[Failure]]:
        """A round in which all wait for each other. A journey is one client's, or that of several in sequence, with a
        model of so many bytes. Which are among the first that are waited for, and who did not come in time; the clock
        moves to the end of the round."""
        trips = [self._in_sequence(clients, nbytes, round) for clients, nbytes in journeys]
        limit = self.now + self.config.deadline if self.config.deadline else math.inf
        failures, back = [], {}
        for i, row in enumerate(trips):
            gone = next((trip for trip in row if trip.lost), None)
            if gone is not None:
                failures.append(Failure(round, 0, gone.client, "offline", GONE))
            elif row[-1].back > limit:
                took = (
                    f"it would have taken {row[-1].back - self.now:.0f} s, the deadline is {self.config.deadline:g} s"
                )
                failures.append(Failure(round, 0, row[-1].client, "timeout", took))
            else:
                back[i] = row[-1].back
        first = sorted(back, key=lambda i: (back[i], i))[: self.wanted(len(trips))]
        ends = [back[i] for i in first]
        if len(first) < self.wanted(len(trips)):  # it waited for those who did not come, too
            ends += [limit] if limit < math.inf else [row[-1].back for row in trips]
        self.move_to(max(ends, default=self.now))
        return sorted(first), failures

    def _in_sequence(self, clients: Sequence[str], nbytes: float, round: int) -> list[Trip]:
        trips: list[Trip] = []
        for client in clients:
            trips.append(self.trip(client, (round, 0), nbytes, trips[-1].back if trips else self.now))
        return trips

    def reachable(self, clients: Sequence[str], busy: set[str], number: int) -> str | None:
        """A client who is not busy, drawn for the order of this number; of several that are looked at, the first that
        can be reached now, else the one that can be reached soonest."""
        draw = np.random.default_rng([self._seed, 0xA551, number])
        drawn = (clients[int(i)] for i in draw.integers(len(clients), size=_TRIES))
        return self._soonest(c for c in drawn if c not in busy) or self._soonest(
            islice((c for c in clients if c not in busy), _TRIES)
        )

    def _soonest(self, clients: Iterable[str]) -> str | None:
        """The first that can be reached now, else the one that can be reached soonest; no more are looked at."""
        later: dict[str, float] = {}
        for client in clients:
            if (moment := self.device(client).next_reached(self.now)) <= self.now:
                return client
            later.setdefault(client, moment)
        return min(later, key=later.__getitem__, default=None)


def make_world(config: WorldConfig | None, seed: int, described: Mapping[str, Any], epochs: int) -> World | None:
    """The world of a recipe's [world] section; `described` is what is known of the clients' data."""
    if config is None:
        return None
    counts = described.get("train")
    if not isinstance(counts, Mapping):
        raise RunError(
            "the clock needs to know how many samples each client has, and the task does not say it", where="[world]"
        )
    devices = read_devices(Path(config.devices)) if config.devices else ()
    return World(config, seed, lambda client: float(sum(counts.get(client, (1,)))), epochs, devices)


def check_clock(recipe: Recipe, method: Method) -> None:
    """Raise, before any data are read, if a method that does not wait for all clients has no clock to go by, or is
    told what only rounds that wait can do."""
    if method.waits:
        return
    if recipe.world is None:
        raise no_clock()
    if recipe.round.aggregation != "mean":
        raise RecipeError(
            "a method that does not wait adds updates as they come",
            where="[round] aggregation",
            expected="mean",
            found=recipe.round.aggregation,
        )
    for section, config in (("round", recipe.round), ("world", recipe.world)):
        usual = type(config)()
        for name, instead in _OF_ROUNDS_THAT_WAIT[section].items():
            if (found := getattr(config, name)) != (default := getattr(usual, name)):
                raise RecipeError(
                    f"this does nothing with {recipe.method['name']}, which does not wait: {instead}",
                    where=f"[{section}] {name}",
                    expected=f"{default}, as it is by default",
                    found=str(found),
                    hint=f"take it out, or add --set {section}.{name}={default}",
                )


def no_clock() -> RecipeError:
    return RecipeError(
        "a method that does not wait for all clients needs to know how long each takes",
        where="[world]",
        expected="a section [world]",
        hint="add --set world.seconds=0.1: what a middling device takes for a sample",
    )


def read_devices(path: Path) -> tuple[Device, ...]:
    """A file of devices, as `fedreel data devices` writes it."""
    try:
        rows = parse_json(path.read_text())["devices"]
        found = tuple(_device(row) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            "these are no devices",
            where=str(path),
            expected="a file that `fedreel data devices` has written",
            found=f"{type(error).__name__}: {error}",
        ) from error
    if not found:
        raise DataError("there are no devices in the file", where=str(path))
    return found


def write_devices(devices: Sequence[Device]) -> str:
    """What a file of devices holds."""
    rows = [
        {"seconds": d.seconds, "line": d.line, **({"there": d.there, "period": d.period} if d.there else {})}
        for d in devices
    ]
    return json.dumps({"devices": rows}) + "\n"


def _device(row: Mapping[str, Any]) -> Device:
    there = tuple((float(begin), float(end)) for begin, end in row.get("there", ()))
    device = Device(float(row["seconds"]), float(row["line"]), there, float(row.get("period", math.inf)))
    numbers = (device.seconds, device.line, *(moment for pair in there for moment in pair))
    if not all(0 <= n < math.inf for n in numbers) or not device.line > 0 or not device.period > 0:
        raise ValueError(f"a device with {json.dumps(row)[:100]}")
    return device
