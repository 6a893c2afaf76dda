"""Video summarisation: which shots matter?"""

from fedreel.systems import System, Verb

SYSTEM = System(
    task="summary",
    cls="fedreel.tasks.summary.task:Summary",
    verbs=(Verb("summarize", "fedreel.tasks.summary.command:summarize", "VIDEO -o summary.mp4"),),
    name="cfedvs",
    title="CFed-VS",
    recipe="cfedvs",
    demo_rounds=12,
    tables="fedreel.reproduce.cfedvs",
    playground={"summary": "fedreel.tasks.summary.playground"},
)
