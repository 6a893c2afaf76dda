"""Action recognition from skeletons of any topology."""

from fedreel.systems import System, Verb

SYSTEM = System(
    task="skeleton",
    cls="fedreel.tasks.skeleton.task:SkeletonRecognition",
    verbs=(
        Verb(
            "recognize",
            "fedreel.tasks.use.recognize:recognize",
            "MOTION",
            answers="fedreel.tasks.skeleton.recognize:recognize_motion",
        ),
    ),
    name="fsar",
    title="FSAR",
    recipe="fsar",
    demo_rounds=16,
    tables="fedreel.reproduce.fsar",
    playground={"skeletons": "fedreel.tasks.skeleton.playground"},
)
