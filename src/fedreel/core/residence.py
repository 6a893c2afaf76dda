"""What of the clients' data lies in memory, within a budget: the least recently used goes first."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch
from torch import nn

from fedreel.core.task import EVERYONE, ClientData, Examples, Population, Streamable, Task
from fedreel.errors import FedreelError, nearest

LOOKED_AT = 10_000  # clients among whom the one is looked for who may have been meant
SHARE = 0.25  # of the device's memory, where no budget is given
Key = tuple[str, str]  # a client, and which part of its data


class Residence:
    """Examples on a device. Those that can be read when their turn comes are taken in while there is room, and stay;
    after that they stream: to make room for one client by throwing out another would read whole clips, of which a
    round sees a few frames. Others must be in memory to be worked with: for them the least recently used ones leave,
    on a GPU with the memory they had there."""

    def __init__(self, device: torch.device, budget: int = 0) -> None:
        """`budget` is in bytes; 0: a share of the memory that the device has."""
        self.device, self.budget = device, budget or int(SHARE * memory_of(device))
        self._held: OrderedDict[Key, Examples] = OrderedDict()
        self.used = 0  # bytes of what is held
        self._numbers: dict[str, Mapping[str, float]] = {}  # what clients may tell about their data

    def of_client(self, client: str, population: Population, task: Task, model: nn.Module) -> ClientData:
        """A client's data as this model works with them, taken in when they are first wanted."""
        if client != EVERYONE and client not in population.names:
            raise FedreelError(
                f"there is no client '{client}' here", hint=nearest(client, population.clients[:LOOKED_AT])
            )
        own = _Own(population, client)
        if client not in self._numbers:
            self._numbers[client] = own().numbers
        return ClientData(
            lambda: self.take((client, "train"), lambda: task.prepared(model, own().train, True)),
            lambda: self.take((client, "test"), lambda: task.prepared(model, own().test, False)),
            self._numbers[client],
        )

    def take(self, key: Key, make: Callable[[], Examples]) -> Examples:
        """These examples, where they are held; else made, and held if that can be."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        found = make()
        needed = bytes_of(found)
        if isinstance(found, Streamable) and needed > self.budget - self.used:
            return found.streamed(self.device)
        self._make_room(needed)
        self._held[key] = found.to(self.device)
        self.used += bytes_of(self._held[key])
        return self._held[key]

    @property
    def held(self) -> list[Key]:
        """What is in memory, least recently used first."""
        return [*self._held]

    def _make_room(self, needed: int) -> None:
        if self.used + needed <= self.budget:
            return
        large = [key for key in self._held if bytes_of(self._held[key])]  # the others free nothing
        if large and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # other streams may still read what now becomes free
        for key in large:
            if self.used + needed <= self.budget:
                break
            self.used -= bytes_of(self._held.pop(key))


class _Own:
    """A client's data, asked for once."""

    __slots__ = ("_client", "_found", "_population")

    def __init__(self, population: Population, client: str) -> None:
        self._population, self._client = population, client
        self._found: ClientData | None = None

    def __call__(self) -> ClientData:
        if self._found is None:
            self._found = self._population.data(self._client)
        return self._found


def bytes_of(examples: Examples) -> int:
    """The memory that examples take."""
    if not hasattr(examples, "nbytes"):
        raise FedreelError(
            "a client's examples do not say how much memory they take",
            where=f"the class {type(examples).__name__}",
            expected="a property `nbytes`, the bytes of what they hold",
            found="none",
            hint="sum the `nbytes` of their tensors, as fedreel.core.task.Tensors does",
        )
    return examples.nbytes


def memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
