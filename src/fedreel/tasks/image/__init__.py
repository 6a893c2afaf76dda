"""Image classification from few labels."""

from fedreel.systems import System, Verb

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
    demo_rounds=9,
    tables="fedreel.reproduce.fedlid",
    playground={"images": "fedreel.tasks.image.playground"},
)
