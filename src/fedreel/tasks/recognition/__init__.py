"""Action recognition from clips."""

from fedreel.systems import Demo, System, Verb

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
        Verb("search", "fedreel.tasks.vision.search.command:search", "CLIP --in FOLDER"),
        Verb(
            "find",
            "fedreel.tasks.moments.command:find",
            'VIDEO "what is to be seen"',
            answers="fedreel.tasks.moments.by_classes:find_by_classes",
        ),
    ),
    name="recognition",
    title="recognition",
    recipe="recognition",
    demo=Demo(
        purpose="Names the action in a short clip, after training on clips that never left their owners.",
        show="fedreel.tasks.recognition.demo:show",
        metric="top1",
        measures="share of test clips named correctly",
        rounds=6,
        seconds=65,
    ),
    tables="fedreel.reproduce.recognition",
    playground={"actions": "fedreel.playground.actions"},
)
