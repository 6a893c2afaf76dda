"""Action recognition from skeletons of any topology."""

from fedreel.systems import Demo, System, Verb

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
        Verb("poses", "fedreel.tasks.skeleton.poses.command:poses", "VIDEO -o poses.npz", trained=False),
    ),
    name="fsar",
    title="FSAR",
    recipe="fsar",
    demo=Demo(
        purpose="Names what a moving body does, across owners whose sensors and lists of actions differ.",
        show="fedreel.tasks.skeleton.demo:show",
        metric="top1",
        measures="share of test recordings named correctly",
        rounds=12,
        seconds=82,
        settings={"round.evaluate_every": 2},
    ),
    tables="fedreel.reproduce.fsar",
    playground={"skeletons": "fedreel.tasks.skeleton.playground"},
)
