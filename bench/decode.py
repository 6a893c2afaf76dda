"""Features of a set of videos, decoded by one thread and by as many as there are cores.

    python bench/decode.py [--videos 16] [--features plain]

Videos of 640 x 360 pixels are made here. Threads decode ahead; features are made one after another, so that what one
core does beside decoding is the bound of the gain. Shards are built by processes: see shards.py. The last line is one
JSON object; `same_bits` says whether features are the same either way.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from fedreel.data.features import make_features
from fedreel.machine.processes import cores
from fedreel.media import video
from fedreel.tasks.moments.features import make_moment_features

FPS, HEIGHT, WIDTH = 25, 360, 640


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--videos", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a video")
    parser.add_argument("--features", default="plain")
    options = parser.parse_args()
    found: dict[int, tuple[float, dict[str, bytes]]] = {}
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp) / "videos"
        write_videos(folder, options.videos, options.seconds)
        print(f"{options.videos} videos of {options.seconds:g} s, {WIDTH} x {HEIGHT}; {options.features}")
        print(f"{'threads':>8}{'seconds':>10}{'ratio':>8}")
        for threads in sorted({1, cores()}):
            with mock.patch.dict(os.environ, FEDREEL_CACHE=f"{temp}/cache-{threads}"):
                found[threads] = timed(folder, options.features, threads)
            ratio = found[1][0] / found[threads][0]
            print(f"{threads:>8}{found[threads][0]:>10.2f}{ratio:>8.2f}", flush=True)
    same = all(rows == found[1][1] for _, rows in found.values())
    seconds = {threads: taken for threads, (taken, _) in found.items()}
    print(json.dumps({"bench": "decode", "seconds": seconds, "all_to_one": ratio, "same_bits": same}))


def timed(folder: Path, name: str, threads: int) -> tuple[float, dict[str, bytes]]:
    with mock.patch("fedreel.machine.ahead.own_cores", return_value=threads):
        began = time.perf_counter()
        made = make_moment_features(folder, make_features(name), 2.0)
        seconds = time.perf_counter() - began
    return seconds, {video: made.get(video).tobytes() for video in made.ids}


def write_videos(folder: Path, count: int, seconds: float) -> None:
    """A texture that drifts, another in each video."""
    y, x = np.mgrid[:HEIGHT, : 2 * WIDTH].astype(np.float32)
    for number in range(count):
        waves = [np.sin(x / (9 + number) + c) + np.cos(y / 11 + x * y / 9000 - c) for c in range(3)]
        ground = (128 + 55 * np.stack(waves, axis=2)).astype(np.uint8)
        starts = [3 * t % WIDTH for t in range(max(2, round(FPS * seconds)))]
        video.write(folder / f"{number}.mp4", np.stack([ground[:, s : s + WIDTH] for s in starts]), FPS)


if __name__ == "__main__":
    main()
