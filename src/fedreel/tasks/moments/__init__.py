"""Moment retrieval: when does the video show what a sentence says?"""

from fedreel.systems import Demo, System, Verb

SYSTEM = System(
    task="moments",
    cls="fedreel.tasks.moments.task:MomentRetrieval",
    verbs=(
        Verb(
            "find",
            "fedreel.tasks.moments.command:find",
            'VIDEO "what happens"',
            answers="fedreel.tasks.moments.find:find_moments",
        ),
    ),
    name="fedvmr",
    title="FedVMR",
    recipe="fedvmr",
    demo=Demo(
        purpose="Finds when a long video shows what a sentence says, trained across owners with habits of their own.",
        show="fedreel.tasks.moments.demo:show",
        metric="miou",
        measures="mean overlap of the moment found with the true one",
        rounds=32,
        seconds=100,
        settings={"data.size": "demo", "round.evaluate_every": 2},
    ),
    tables="fedreel.reproduce.fedvmr",
    playground={"moments": "fedreel.tasks.moments.playground"},
)
