"""Action recognition from clips."""

from fedreel.systems import System, Verb

SYSTEM = System(
    task="recognition",
    cls="fedreel.tasks.recognition.task:Recognition",
    verbs=(
        Verb(
            "recognize",
            "fedreel.tasks.use.recognize:recognize",
            "CLIP",
            answers="fedreel.tasks.recognition.recognize:recognize_videos",
        ),
        Verb("search", "fedreel.tasks.vision.search.command:search", "CLIP FOLDER"),
    ),
    name="recognition",
    title="recognition",
    recipe="recognition",
    demo_rounds=6,
    tables="fedreel.reproduce.recognition",
    playground={"actions": "fedreel.playground.actions"},
)
