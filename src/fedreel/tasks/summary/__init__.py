"""Video summarisation: which shots matter?"""

from fedreel.systems import Demo, System, Verb

SYSTEM = System(
    task="summary",
    cls="fedreel.tasks.summary.task:Summary",
    verbs=(Verb("summarize", "fedreel.tasks.summary.command:summarize", "VIDEO -o summary.mp4"),),
    name="cfedvs",
    title="CFed-VS",
    recipe="cfedvs",
    demo=Demo(
        purpose="Cuts a long video down to the shots that matter to a community, without pooling anybody's videos.",
        show="fedreel.tasks.summary.demo:show",
        metric="tau",
        measures="agreement with the scores that people gave (Kendall's tau)",
        rounds=12,
        seconds=40,
        settings={"train.epochs": 1, "train.lr": 1e-3},
    ),
    tables="fedreel.reproduce.cfedvs",
    playground={"summary": "fedreel.tasks.summary.playground"},
)
