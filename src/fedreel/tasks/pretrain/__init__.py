"""Self-supervised pretraining on clips."""

from fedreel.systems import Demo, System, Verb

SYSTEM = System(
    task="pretrain",
    cls="fedreel.tasks.pretrain.task:Pretrain",
    verbs=(Verb("search", "fedreel.tasks.vision.search.command:search", "CLIP --in FOLDER"),),
    name="fedvssl",
    title="FedVSSL",
    recipe="fedvssl",
    demo=Demo(
        purpose="Finds similar videos without a single label, after watching clips that never left their owners.",
        show="fedreel.tasks.pretrain.demo:show",
        metric="accuracy",
        measures="share of test clips whose playing speed is told correctly, one of seven",
        rounds=10,
        seconds=95,
        settings={"round.evaluate_every": 2},
    ),
    tables="fedreel.reproduce.fedvssl",
    playground={"actions": "fedreel.playground.actions"},
)
