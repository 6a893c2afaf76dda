"""Moment retrieval: when does the video show what a sentence says?"""

from fedreel.systems import System, Verb

SYSTEM = System(
    task="moments",
    cls="fedreel.tasks.moments.task:MomentRetrieval",
    verbs=(Verb("find", "fedreel.tasks.moments.command:find", 'VIDEO "what happens"'),),
    name="fedvmr",
    title="FedVMR",
    recipe="fedvmr",
    demo_rounds=20,
    tables="fedreel.reproduce.fedvmr",
    playground={"moments": "fedreel.tasks.moments.playground"},
)
