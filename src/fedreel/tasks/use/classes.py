"""What recognising anything shares: whose classifier of a run answers, and what it calls its classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedreel.core.server import GLOBAL
from fedreel.core.state import PrivateStore
from fedreel.errors import DataError, RunError, nearest
from fedreel.machine.files import write_atomic
from fedreel.media import images, video
from fedreel.runs.rundir import read_metrics

Ranking = list[tuple[str, float]]  # classes with their probabilities, the likeliest first
SKELETONS = frozenset((".skeleton", ".mat", ".npz"))


def class_lists(run: Path) -> dict[str, list[str]]:
    """The clients of a run and what they call their classes; an empty list where the run does not tell."""
    try:
        record: dict[str, Any] = next(read_metrics(run, "partition"), {})
    except OSError:  # a model without its run
        record = {}
    if "sets" in record:
        return {client: [str(name) for name in told["classes"]] for client, told in record["sets"].items()}
    names = [str(name) for name in record.get("classes", [])]
    return dict.fromkeys(record.get("train") or PrivateStore(run / "clients").clients(), names)


def model_for(client: str, card: dict[str, Any]) -> str:
    """Which of a run's models answers: that of the client's community, or what the method says is for use."""
    return card.get("communities", {}).get(client) or card.get("recognize", GLOBAL)


def numbered(classes: int) -> list[str]:
    """What classes are called whose names are not known."""
    return [f"class {n}" for n in range(1, classes + 1)]


def check_client(run: Path, client: str, known: Sequence[str], card: dict[str, Any]) -> None:
    """Raise unless the client is one of the run's, where the run tells, and its part of the model is trained."""
    if known and client not in known:
        raise RunError(f"this run has no client '{client}'", where=str(run), hint=nearest(client, known))
    if not card["private"] or card["recipe"].get("engine", {}).get("name") == "flower":
        return  # nothing is the client's own, or it stayed at a real site: loading says so
    store = PrivateStore(run / "clients")
    if not any(name.startswith("model/") for name in store.newest(client).tensors):
        trained = [name for name in store.clients() if name != client]
        raise RunError(
            f"the classifier of client '{client}' has never been trained",
            where=str(run),
            expected="a client that took part in a round",
            found=f"trained are {', '.join(trained)}" if trained else "no client's tensors in the run's folder",
        )


def ranked(logits: Tensor, classes: Sequence[str]) -> Ranking:
    """Of one sample. Softmax makes probabilities; of equal ones the class that is named first comes first."""
    shares = logits.double().softmax(0).cpu()
    if not shares.isfinite().all():
        raise RunError("the model gives no finite numbers", hint="its training diverged: try a lower train.lr")
    order = shares.argsort(descending=True, stable=True).tolist()
    return [(classes[i], float(shares[i])) for i in order]


def kind(source: Path) -> str:
    """What a file seems to be, by its name; '' if that says nothing."""
    kinds = {"an image": images.SUFFIXES, "a video": video.SUFFIXES, "a recorded skeleton": SKELETONS}
    return next((name for name, suffixes in kinds.items() if source.suffix.lower() in suffixes), "")


def ranking_lines(ranking: Ranking, top: int) -> list[str]:
    """The answer, and below it the likeliest classes."""
    width = max(len(plain(label)) for label, _ in ranking[:top])
    rows = [f"  {plain(label):<{width}}  {100 * share:5.1f} %" for label, share in ranking[:top]]
    return [f"{plain(ranking[0][0])}  {100 * ranking[0][1]:.0f} %", *rows]


def plain(text: str) -> str:
    """Names may be of any bytes; a terminal gets only what it can show."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def write_all(contents: Sequence[tuple[Path | str | None, str | bytes]]) -> None:
    """Each content to its place, where there is one; a reader finds the old file or the whole new one."""
    for given, content in contents:
        if given is None:
            continue
        place = Path(given)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, content)
        except OSError as error:
            raise DataError("this cannot be written", where=str(place), found=error.strerror or str(error)) from error
