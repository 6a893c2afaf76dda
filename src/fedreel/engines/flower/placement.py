"""Which orders go to which actor of a simulation: large actors where there are many cores, and each as long at work as
the others. Where an order lands changes no result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedreel.core.update import Order
from fedreel.errors import RunError

Part = list[Order]  # what goes to one actor as a whole

_MEANS = 100  # of a round's clients, at most: so many actors can have a part of a round whose updates leave together
_FEW = 4  # clients that a mean is worth while for


@dataclass(frozen=True)
class Shape:
    """How a cluster is divided: so many actors, each with `cpus` cores, on which it works for `workers` clients at
    once. Each of them may have one part in `share` of its host's memory."""

    actors: int
    cpus: int
    workers: int
    share: int


def shape_of(hosts: Sequence[int], threads: int, most: int) -> Shape:
    """At most so many actors on these hosts (their cores) that work for as many clients at once as possible, with so
    many `threads` each: the smallest ones of that kind."""
    if not any(cores >= threads for cores in hosts):
        raise RunError(
            f"no host of the cluster has {threads} cores",
            where="[engine] threads",
            expected=f"at most {max(hosts, default=0)}",
            found=str(threads),
        )
    shapes = [_shape(hosts, threads, cpus) for cpus in range(threads, max(hosts) + 1)]
    few = [shape for shape in shapes if shape.actors <= most] or shapes[-1:]
    return max(few, key=lambda shape: shape.actors * shape.workers)


def _shape(hosts: Sequence[int], threads: int, cpus: int) -> Shape:
    workers = cpus if threads == 1 else 1  # workers in processes have one thread each
    return Shape(sum(cores // cpus for cores in hosts), cpus, workers, workers * (max(hosts) // cpus))


def parts_of(orders: Sequence[Order]) -> list[Part]:
    """Single orders; those whose updates leave together in parts of equal size, as they come. What is added up in a
    part depends on these orders alone, neither on the number of actors nor on how fast they are."""
    single = [[order] for order in orders if not order.together]
    joint = [order for order in orders if order.together]
    size = max(_FEW, math.ceil(len(joint) / _MEANS))
    return single + [joint[at : at + size] for at in range(0, len(joint), size)]


def spread(parts: Sequence[Part], seconds: Callable[[Order], float], places: int) -> list[list[Part]]:
    """The parts of each place: the longest go first, each to the place with the least to do. An order of whom nothing
    is known counts as the longest of which something is."""
    told = {order.key: seconds(order) for part in parts for order in part}
    longest = max((value for value in told.values() if math.isfinite(value)), default=1.0)
    lengths = [sum(min(told[order.key], longest) for order in part) for part in parts]
    loads, placed = [0.0] * places, [list[int]() for _ in range(places)]
    for at in sorted(range(len(parts)), key=lambda at: -lengths[at]):
        place = min(range(places), key=lambda place: (loads[place], len(placed[place])))
        loads[place] += lengths[at]
        placed[place].append(at)
    return [[parts[at] for at in sorted(mine)] for mine in placed]
