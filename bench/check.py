"""`fedreel data check` on five minutes of 1080p in 64 clips: the quick check against the thorough one, and whether each
finds the clips that are cut short.

    python bench/check.py [--clips 64] [--seconds 4.7] [--data FOLDER]

With --data it looks at that folder instead and knows of no planted faults.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

FPS, HEIGHT, WIDTH = 30, 1080, 1920
PATTERNS = 4  # films that are encoded; the clips are copies with a number at their end
CUT = 8  # of so many clips one is cut short


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.7, help="of a clip")
    parser.add_argument("--data", type=Path, help="look at this folder")
    parser.add_argument("--skip-thorough", action="store_true", help="only the quick check")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = given.data or Path(folder) / "clips"
        cut = set() if given.data else make_clips(root, given.clips, round(given.seconds * FPS))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        made = f"{given.clips} clips of {given.seconds} s, {WIDTH} x {HEIGHT}, one of {CUT} cut short"
        print(f"{given.data or made}; {cores} cores")
        print(f"{'':<12}{'seconds':>9}{'CPU s':>9}{'problems':>10}{'missed':>8}{'wrong':>7}")
        rows = {}
        for mode in ("quick", *(() if given.skip_thorough else ("thorough",))):
            row = rows[mode] = measure(root, mode == "thorough", cut if not given.data else None)
            print(f"{mode:<12}{row['seconds']:>9.1f}{row['cpu']:>9.1f}{row['problems']:>10}", end="")
            print(f"{row['missed']:>8}{row['wrong']:>7}", flush=True)
    print(json.dumps({"bench": "check", "cores": cores, **rows}))


def measure(root: Path, thorough: bool, cut: set[str] | None) -> dict[str, Any]:
    """The command in a process of its own: its wall and CPU seconds, and what it found."""
    script = (
        "import json, sys; from pathlib import Path; from fedreel.data.check import check\n"
        "report = check(Path(sys.argv[1]), thorough=sys.argv[2] == 'True')\n"
        "print(json.dumps([problem.where for problem in report.problems]))"
    )
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-c", script, str(root), str(thorough)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    named = set(json.loads(done.stdout.splitlines()[-1]))
    return {
        "seconds": round(seconds, 2),
        "cpu": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "problems": len(named),
        "missed": 0 if cut is None else len(cut - named),
        "wrong": 0 if cut is None else len(named - cut),
    }


def make_clips(root: Path, count: int, frames: int) -> set[str]:
    """Clips by two owners, in two classes; returns those that were cut short."""
    root.mkdir(parents=True)
    films = [root.parent / f"film{number}.mp4" for number in range(min(PATTERNS, count))]
    for number, film in enumerate(films):
        write(film, frames, number)
    cut = set()
    for number in range(count):
        content = films[number % len(films)].read_bytes()
        path = root / f"owner{number % 2}" / f"class{number // 2 % 2}" / f"{number:03}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number % CUT == CUT - 1:
            cut.add(path.relative_to(root).as_posix())
            path.write_bytes(content[: len(content) * 3 // 4])
        else:  # a box that readers skip makes each file another one
            path.write_bytes(content + (8 + 4).to_bytes(4, "big") + b"free" + number.to_bytes(4, "big"))
    return cut


def write(path: Path, frames: int, seed: int) -> None:
    """A grainy picture that drifts, so that it takes about as many bytes as a camera's."""
    grain = np.random.default_rng(seed).integers(0, 255, (HEIGHT // 4, WIDTH // 4, 3), dtype=np.uint8)
    picture = grain.repeat(4, axis=0).repeat(4, axis=1)
    with av.open(str(path), "w", container_options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"crf": "28", "preset": "veryfast"}
        for number in range(frames):
            moved = np.roll(picture, (3 * number, 5 * number), (0, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
        container.mux(stream.encode(None))


if __name__ == "__main__":
    main()
