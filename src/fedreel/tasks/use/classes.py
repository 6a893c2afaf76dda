"""What recognising anything shares: the names of a run's classes, rankings of them, and kinds of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedreel.errors import RunError
from fedreel.media import images, video
from fedreel.tasks.use.models import known_clients, partition_record
from fedreel.tasks.use.recognition import Ranking

KINDS = {  # of files, by their names: the suffixes, and the task whose models recognise them
    "an image": (images.SUFFIXES, "image"),
    "a video": (video.SUFFIXES, "recognition"),
    "a recorded skeleton": (frozenset((".skeleton", ".mat", ".npz")), "skeleton"),
}


def class_lists(run: Path) -> dict[str, list[str]]:
    """The clients of a run and what they call their classes; an empty list where the run does not tell."""
    record = partition_record(run)
    if "sets" in record:
        return {client: [str(name) for name in told["classes"]] for client, told in record["sets"].items()}
    names = [str(name) for name in record.get("classes", [])]
    return dict.fromkeys(known_clients(run, record), names)


def numbered_classes(classes: int) -> list[str]:
    """What classes are called whose names are not known."""
    return [f"class {n}" for n in range(1, classes + 1)]


def rank_classes(logits: Tensor, classes: Sequence[str], temperature: float) -> Ranking:
    """Of one sample. Softmax of logits / temperature makes probabilities; of equal ones the class that is named first
    comes first."""
    shares = (logits.double() / temperature).softmax(0).cpu()
    if not shares.isfinite().all():
        raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
    order = shares.argsort(descending=True, stable=True).tolist()
    return [(classes[i], float(shares[i])) for i in order]


def file_kind(source: Path) -> str:
    """What a file seems to be, by its name; '' if that says nothing."""
    return next((kind for kind, (suffixes, _) in KINDS.items() if source.suffix.lower() in suffixes), "")


def recording_file(source: Path) -> Path:
    """The file of a recording, which may be one of several in it: FILE.npz#NAME."""
    before, mark, _ = str(source).rpartition(".npz#")
    return Path(f"{before}.npz") if mark else source


def other_model(kind: str) -> str:
    """What to do with a file of this kind."""
    task = KINDS[kind][1]
    if task == "skeleton":
        return "give --model a run of the task skeleton; none comes with fedreel: `fedreel run fsar` trains one"
    return f"leave --model out, or give it a run of the task {task}"
