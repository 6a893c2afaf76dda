"""Image classification from few labels."""

from fedreel.systems import Demo, System, Verb

SYSTEM = System(
    task="image",
    cls="fedreel.tasks.image.task:Image",
    verbs=(
        Verb(
            "recognize",
            "fedreel.tasks.use.recognize:recognize",
            "IMAGE",
            answers="fedreel.tasks.image.recognize:recognize_images",
        ),
    ),
    name="fedlid",
    title="FedLID",
    recipe="fedlid",
    demo=Demo(
        purpose="Names what a picture shows from few labels: owners train on their own pictures, the server learns on "
        "from unlabelled ones.",
        show="fedreel.tasks.image.demo:show",
        metric="top1",
        measures="share of test pictures named correctly",
        rounds=8,
        seconds=80,
        settings={"round.evaluate_every": 2, "train.epochs": 1},
    ),
    tables="fedreel.reproduce.fedlid",
    playground={"images": "fedreel.tasks.image.playground"},
)
