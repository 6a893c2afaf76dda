"""The process that works for the pages: models on videos, data looked over. It speaks JSON lines: an order on stdin; on
stdout how far it is, and at the end what it found or what went wrong.

A decoder that crashes takes this process along and not the server."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from fedreel.errors import FedreelError
from fedreel.machine.files import write_atomic
from fedreel.machine.progress import Tell
from fedreel.systems import resolve, verbs

Options = Mapping[str, Any]
ANSWER = "answer.json"


def main() -> None:
    talk = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is not part of the talk
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    while True:
        try:
            _carry_out(orders.get(), talk)
        except KeyboardInterrupt:
            continue


def _listen(line: IO[str], orders: queue.Queue[dict[str, Any]]) -> None:
    for text in line:
        orders.put(json.loads(text))
    os._exit(0)  # the server has gone


def _carry_out(order: dict[str, Any], talk: IO[str]) -> None:
    def say(**told: Any) -> None:
        talk.write(json.dumps({"id": order["id"], **told}) + "\n")
        talk.flush()

    folder = Path(order["folder"])
    try:
        answer = KINDS[order["kind"]](order["options"], folder, lambda what, share: say(what=what, share=share))
        write_atomic(folder / ANSWER, json.dumps(answer))
    except FedreelError as error:
        kept = ("problem", "expected", "found", "where", "hint")
        say(ended="failed", error={name: getattr(error, name) for name in kept})
    except KeyboardInterrupt:
        say(ended="stopped", error={"problem": "It was stopped."})
    except Exception as error:  # whatever it is, the page says it
        traceback.print_exc()
        say(ended="failed", error={"problem": f"{type(error).__name__}: {error}"})
    else:
        say(ended="done")


def _summarize(options: Options, folder: Path, tell: Tell) -> dict[str, Any]:
    result = _verb("summarize")(
        options["source"],
        options["model"],
        out=folder / "summary.mp4",
        page=folder / "page.html",
        json=folder / "result.json",
        ratio=float(options["ratio"]),
        tell=tell,
    )
    _pictures(Path(options["source"]), [shot.middle for shot in result.shots[:MOST]], folder)
    return _answer(result)


def _find(options: Options, folder: Path, tell: Tell) -> dict[str, Any]:
    result = _verb("find")(
        options["source"],
        options["sentence"],
        options["model"],
        out=folder / "moments",
        page=folder / "page.html",
        json=folder / "result.json",
        top=int(options["top"]),
        tell=tell,
    )
    _pictures(Path(options["source"]), [moment.middle for moment in result.moments], folder)
    return {**_answer(result), "clips": [moment.clip for moment in result.moments]}


def _search(options: Options, folder: Path, tell: Tell) -> dict[str, Any]:
    result = _verb("search")(
        options["sentence"] or options["source"],
        options["folder"],
        options["model"],
        page=folder / "page.html",
        json=folder / "result.json",
        top=int(options["top"]),
        tell=tell,
    )
    for number, hit in enumerate(result.hits):
        if _within(result.folder, hit.path):
            _pictures(result.folder / hit.path, [None], folder, number)
    return _answer(result)


def _recognize(options: Options, folder: Path, tell: Tell) -> dict[str, Any]:
    result = _verb("recognize")(
        options["source"],
        options["model"],
        page=folder / "page.html",
        json=folder / "result.json",
        top=int(options["top"]),
        tell=tell,
    )
    return _answer(result)


def _check(options: Options, folder: Path, tell: Tell) -> dict[str, Any]:
    """What `fedreel data check` sees, with pictures of the first clips of each class, and who owns what."""
    from fedreel.data.check import check

    place = Path(options["source"])
    report = check(place, bool(options.get("thorough")), lambda done, of: tell("looking", done / max(of, 1)))
    bad = {finding.where for finding in report.problems}
    seen, shown = dict[str, int](), list[dict[str, str]]()
    for clip in report.clips:
        wanted = seen.get(clip.label, 0) < EACH and len(shown) < MOST and clip.path not in bad
        if wanted and _within(place, clip.path):
            tell("drawing", len(shown) / MOST)
            if _pictures(place / clip.path, [None], folder, len(shown)):
                seen[clip.label] = seen.get(clip.label, 0) + 1
                shown.append({"path": clip.path, "label": clip.label, "owner": ", ".join(clip.owners)})
    clips = [asdict(clip) for clip in report.clips]
    return {"lines": report.lines(), "ok": report.ok, "shown": shown, "clips": clips}


def _verb(name: str) -> Callable[..., Any]:
    """What `fedreel.NAME` is in Python."""
    return resolve(verbs()[name].function)


def _pictures(video: Path, frames: list[int | None], folder: Path, first: int = 0) -> bool:
    """Small pictures, picture-0.jpg and so on; None is the frame in the middle. Where there is nothing to be seen there
    are none."""
    import numpy as np

    from fedreel.media.thumbnails import glimpses

    def which(n_frames: int) -> np.ndarray:
        return np.array([n_frames // 2 if frame is None else frame for frame in frames])

    try:
        pictures = glimpses(video, which)
    except (FedreelError, OSError, ValueError):
        return False
    for number, picture in enumerate(pictures, first):
        (folder / f"picture-{number}.jpg").write_bytes(picture)
    return True


def _within(folder: Path, name: str) -> bool:
    """Whether a file lies there and is no link to another place: nothing else is shown."""
    return (folder / name).resolve().is_relative_to(folder.resolve())


def _answer(result: Any) -> dict[str, Any]:
    return {"lines": result.lines(), "notes": result.notes, "found": result.as_json()}


MOST, EACH = 60, 6  # pictures in all, and of a class
KINDS: dict[str, Callable[[Options, Path, Tell], dict[str, Any]]] = {
    "summarize": _summarize,
    "find": _find,
    "search": _search,
    "recognize": _recognize,
    "check": _check,
}

if __name__ == "__main__":
    main()
