"""What a package outside the tree brings: a task with a verb and a part of the playground, by one declaration."""

from __future__ import annotations

from fedreel.systems import System, Verb

SYSTEM = System(
    task="counting",
    cls="support.counting_task:Counting",
    verbs=(Verb("count", "support.counting_verb:count"), Verb("find", "support.counting_verb:count")),
    playground={"pebbles": "support.counting_task"},
)
