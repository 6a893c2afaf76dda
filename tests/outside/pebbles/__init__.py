"""A package outside the tree. It brings a task with a verb and a part of the playground, a method, a backbone and an
engine, and imports nothing of fedreel but what the pages "add a ..." name."""

from __future__ import annotations

from fedreel.systems import System, Verb

SYSTEM = System(
    task="counting",
    cls="pebbles.task:Counting",
    verbs=(Verb("count", "pebbles.verb:count"), Verb("find", "pebbles.verb:count")),  # `find` is taken
    playground={"pebbles": "pebbles.world"},
)
