"""Shards of 1,000 clips: the speed of all cores against one, broken files, and a build that is stopped and goes on."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import noted
from fedreel.data import clip_index, shards
from fedreel.media import video

FRAMES, HEIGHT, WIDTH = 48, 120, 160
PATTERNS = 20  # different films; the clips are copies of them
KINDS = ("whole",) * 22 + ("empty", "garbage", "cut")  # of every 25 clips


def main() -> None:
    options = _options()
    if options.build:
        root, out = map(Path, options.build)
        return build(root, out, options)
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options)


def compare(folder: Path, options: argparse.Namespace) -> None:
    """One worker, all cores, and all cores with a SIGTERM in the middle; each build in a process of its own."""
    root = folder / "clips"
    kinds = make_clips(root, options.clips)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    per_part = options.clips_per_part
    print(
        f"{options.clips} clips of {FRAMES} frames, {WIDTH} x {HEIGHT} to 64 x 64, {per_part} to a part; {cores} cores"
    )
    print(f"{'':<32}{'seconds':>9}{'clips/s':>9}{'ratio':>7}")
    seconds = {}
    for workers in sorted({1, cores}):
        seconds[workers] = _finish(_start(root, folder / f"by{workers}", workers, options))
        name = f"{workers} worker{'s' * (workers > 1)}"
        ratio = seconds[1] / seconds[workers]
        print(f"{name:<32}{seconds[workers]:>9.2f}{options.clips / seconds[workers]:>9.1f}{ratio:>7.2f}", flush=True)
    stopped = interrupt(root, folder / "stopped", cores, options)
    built = shards.Shards.open(folder / "stopped")
    expected = {
        "broken": {path for path, kind in kinds.items() if kind in ("empty", "garbage")},
        "cut": {path for path, kind in kinds.items() if kind == "cut"},
    }
    wrong = {name: len(paths ^ {entry.path for entry in getattr(built, name)}) for name, paths in expected.items()}
    same = all(_files(folder / f"by{workers}") == _files(folder / "stopped") for workers in seconds)
    print(f"{'broken, cut short':<32}{len(built.broken)}, {len(built.cut)}; wrong or missing: {sum(wrong.values())}")
    print(f"{'stopped by SIGTERM':<32}at {stopped['finished']} clips in finished parts")
    print(f"{'decoded twice after the resume':<32}{stopped['twice']}, of them in finished parts: {stopped['again']}")
    print(f"{'the same bytes as in one go':<32}{'yes' if same else 'no'}")
    result = {
        "clips": options.clips,
        "cores": cores,
        "clips_per_second": {str(workers): round(options.clips / s, 1) for workers, s in seconds.items()},
        "ratio_all_to_1": round(seconds[1] / seconds[cores], 2),
        "broken": len(built.broken),
        "cut": len(built.cut),
        "listed_wrongly": sum(wrong.values()),
        **{f"resume_{name}": count for name, count in stopped.items()},
        "same_bytes": same,
    }
    print(json.dumps(result))


def interrupt(root: Path, out: Path, workers: int, options: argparse.Namespace) -> dict[str, int]:
    """Stop a build once half of the clips are done, and build on. Counts clips: in parts finished before the stop,
    opened twice, and, of the finished ones, opened again."""
    log = out.with_suffix(".opened")
    first = _start(root, out, workers, options, log)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("done") and int(line.split()[1]) >= options.clips / 2:
            break
    first.send_signal(signal.SIGTERM)
    first.stdout.read()  # ends when the workers have ended too: they hold the pipe
    first.wait()
    finished: set[str] = set()
    for part in out.glob("part-*.json"):
        found = json.loads(part.read_text())
        finished |= {entry["path"] for name in ("clips", "broken") for entry in found[name]}
    if first.returncode != -signal.SIGTERM or not 0 < len(finished) < options.clips:
        raise SystemExit("the build was not stopped in the middle: take more clips, or fewer to a part")
    before = log.read_text().splitlines()
    _finish(_start(root, out, workers, options, log))
    after = log.read_text().splitlines()[len(before) :]
    opened = Counter(before) + Counter(after)
    twice = sum(count > 1 for count in opened.values())
    return {"finished": len(finished), "twice": twice, "again": len(finished & {*after})}


def build(root: Path, out: Path, options: argparse.Namespace) -> None:
    shards.CLIPS_PER_PART = options.clips_per_part
    if noted.OPENED in os.environ:
        shards._decode_part = noted.decode_part
    clips, began = clip_index.find(root), time.perf_counter()
    shards.build(clips, root, out, workers=options.workers, progress=lambda done, _: print("done", done, flush=True))
    print("seconds", time.perf_counter() - began)


def make_clips(root: Path, count: int) -> dict[str, str]:
    """Clips, and what is the matter with each."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    films = []
    for number in range(min(PATTERNS, count)):
        waves = [np.sin((x - 2 * t) / (5 + number) + y / 11 + c) for t in range(FRAMES) for c in range(3)]
        picture = np.stack(waves).reshape(FRAMES, 3, HEIGHT, WIDTH).transpose(0, 2, 3, 1)
        films.append(root.parent / f"film{number}.mp4")
        video.write(films[-1], (128 + 90 * picture).astype(np.uint8), 24)
    kinds = {}
    for number in range(count):
        path = root / f"owner{number % 4}" / f"class{number % 3}" / f"{number:05d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = kinds[path.relative_to(root).as_posix()] = KINDS[number % len(KINDS)]
        shutil.copyfile(films[number % len(films)], path)
        if kind != "whole":
            content = path.read_bytes()
            path.write_bytes({"empty": b"", "garbage": content[::-1], "cut": content[: len(content) * 7 // 8]}[kind])
    return kinds


def _start(root: Path, out: Path, workers: int, options: argparse.Namespace, log: Path | None = None) -> Any:
    command = [sys.executable, __file__, "--build", str(root), str(out), "--workers", str(workers)]
    command += ["--clips-per-part", str(options.clips_per_part)]
    environment = {**os.environ, **({noted.OPENED: str(log)} if log else {})}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _finish(process: subprocess.Popen[str]) -> float:
    """Wait for a build; returns its seconds, from the list of clips to the opened shards."""
    printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a build failed with status {process.returncode}")
    return float(printed.split()[-1])


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--clips-per-part", type=int, default=shards.CLIPS_PER_PART, help="fewer, to try few clips")
    parser.add_argument("--build", nargs=2, metavar=("ROOT", "OUT"), help="only build these shards, and time it")
    parser.add_argument("--workers", type=int, help="with --build")
    return parser.parse_args()


if __name__ == "__main__":
    main()
