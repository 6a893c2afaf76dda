"""Self-supervised pretraining on clips."""

from fedreel.systems import System, Verb

SYSTEM = System(
    task="pretrain",
    cls="fedreel.tasks.pretrain.task:Pretrain",
    verbs=(Verb("search", "fedreel.tasks.vision.search.command:search", "CLIP FOLDER"),),
    name="fedvssl",
    title="FedVSSL",
    recipe="fedvssl",
    demo_rounds=14,
    tables="fedreel.reproduce.fedvssl",
    playground={"actions": "fedreel.playground.actions"},
)
