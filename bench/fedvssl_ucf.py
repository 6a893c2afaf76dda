"""FedVSSL on UCF-101 as Flower's baseline has it, on generated clips of UCF-101's size, from mp4 files to the model.

    python bench/fedvssl_ucf.py --device cuda --rounds 3

R3D-18 and Catch-the-Patch (recipe fedvssl-paper), five clients of 1,907 clips, all of them in every round, one local
epoch, batch 4. Clips are H.264 files of 320 x 240 pixels, 25 frames a second, seven seconds; `--distinct` of them
differ, the others are the same files under other names, each decoded again. Two commands are timed, as a user types
them: `fedreel data shard` decodes all files once, to JPEG pictures of 128 pixels, and `fedreel run` trains for some
rounds, in which the pictures are decoded as their turn comes. A client-epoch is a round / 5; the first round, in which
steps are recorded, is not counted. The baseline's job has 20 rounds: with decoding it takes the shards' time and 20
such rounds, by arithmetic. Flower's 17 s are published, for real videos on an A100, another GPU. The last line is JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedreel.machine.processes import cores
from fedreel.machine.words import size
from fedreel.media import video
from fedreel.runs.reading import read_metrics, read_summary

CLIENTS, CLIPS, ROUNDS = 5, 1907, 20  # of Flower's baseline
PUBLISHED = 17.0  # seconds a client-epoch, on an A100, by Flower's baseline
FPS, HEIGHT, WIDTH = 25, 240, 320


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.place) as temp:
        place = Path(temp)
        began = time.perf_counter()
        each = make_clips(place / "videos", options)
        files = CLIENTS * (options.clips + 1)
        print(f"{files:,} files of {options.seconds:g} s, {size(each)} each, {options.distinct} of them different")
        print(f"made in {time.perf_counter() - began:.0f} s", flush=True)
        shard = ["data", "shard", str(place / "videos"), "--out", str(place / "shards")]
        decoding = fedreel(*shard, "--size", str(options.stored), "--quality", "90")
        print(f"decoded once, to pictures, in {decoding:.1f} s: {files / decoding:.0f} files a second", flush=True)
        found = [train(place, precision, decoding, options) for precision in options.precision.split(",")]
    facts = {"clips": options.clips, "rounds": options.rounds, "files": files, "bytes_per_file": each}
    print(
        json.dumps({"bench": "fedvssl_ucf", **facts, "decoding_s": decoding, "published_s": PUBLISHED, "runs": found})
    )


def train(place: Path, precision: str, decoding: float, options: argparse.Namespace) -> dict[str, Any]:
    """Some rounds of the job; seconds a client-epoch without and with decoding the files."""
    settings = {
        "data.partition": '{name = "by-owner"}',
        "data.memory": options.memory,
        "round.rounds": options.rounds,
        "round.clients": CLIENTS,
        "round.evaluate_every": 0,
        "train.precision": precision,
        **dict(item.split("=", 1) for item in options.set),
    }
    run = place / f"run-{precision}"
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    whole = fedreel(
        *("run", "fedvssl-paper", "--data", str(place / "shards"), "--device", options.device, "--out", str(run)),
        *("--quiet", *given),
    )
    seconds = [row["seconds"] for row in read_metrics(run, "train")]
    epoch = fmean(seconds[1:]) / CLIENTS
    job = epoch + decoding / (ROUNDS * CLIENTS)
    waiting = read_summary(run)["waiting_for_data"]
    print(f"{precision}: {options.rounds} rounds in {whole:.0f} s; a client-epoch of {options.clips:,} clips:")
    print(f"  {epoch:.2f} s, {options.clips / epoch:.0f} clips a second; {waiting:.1%} of it waiting for data")
    print(f"  {job:.2f} s with all files decoded once in a job of {ROUNDS} rounds ({ROUNDS * CLIENTS} client-epochs)")
    if options.clips == CLIPS:
        print(f"  Flower's baseline, published, on an A100: {PUBLISHED:g} s, {PUBLISHED / job:.2f} times as long")
    ratio = {"published_to_this": PUBLISHED / job} if options.clips == CLIPS else {}
    told = {"precision": precision, "rounds_s": seconds, "command_s": whole, "waiting_for_data": waiting}
    return {**told, "client_epoch_s": epoch, "client_epoch_with_decoding_s": job, **ratio}


def make_clips(folder: Path, options: argparse.Namespace) -> float:
    """The files of all clients, one to test with each, and their index; returns the bytes of a file."""
    patterns = folder / "patterns"
    patterns.mkdir(parents=True)
    numbers = range(options.distinct)
    with ThreadPoolExecutor(cores()) as pool:  # most of it is done by numpy and x264, without Python's lock
        list(pool.map(partial(write_pattern, patterns, options.seconds), numbers))
    rows = [("path", "label", "owner", "split")]
    for number in range(CLIENTS * (options.clips + 1)):
        client, of_client = number % CLIENTS, number // CLIENTS
        path = f"client-{client}/{of_client:05}.mp4"
        (folder / path).parent.mkdir(exist_ok=True)
        os.link(patterns / f"{number % options.distinct}.mp4", folder / path)
        rows.append((path, "", f"client-{client}", "train" if of_client < options.clips else "test"))
    each = fmean((patterns / f"{number}.mp4").stat().st_size for number in numbers)
    for number in numbers:
        (patterns / f"{number}.mp4").unlink()
    patterns.rmdir()
    with (folder / "index.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return each


def write_pattern(folder: Path, seconds: float, number: int) -> None:
    """A drifting texture, and a patch that moves over it; a little noise, as of a camera."""
    draw = np.random.default_rng(number)
    y, x = np.mgrid[:HEIGHT, : 2 * WIDTH].astype(np.float32)
    a, b, c = draw.uniform(8, 40, 3)
    waves = [np.sin(x / a + shift) + np.cos(y / b + x / c - shift) for shift in draw.uniform(0, 6, 3)]
    ground = (128 + 45 * np.stack(waves, axis=2)).astype(np.uint8)
    noise = draw.integers(0, 12, (8, HEIGHT, WIDTH, 1), dtype=np.uint8)
    side, colour, speed = int(draw.integers(40, 90)), draw.integers(0, 240, 3), draw.uniform(1, 5, 3)
    frames = np.empty((max(2, round(FPS * seconds)), HEIGHT, WIDTH, 3), np.uint8)
    for t, frame in enumerate(frames):
        left = int(speed[0] * t) % WIDTH
        frame[...] = ground[:, left : left + WIDTH]
        top, at = (int(v * t) % room for v, room in zip(speed[1:], (HEIGHT - side, WIDTH - side)))
        frame[top : top + side, at : at + side] = colour
        frame += noise[t % len(noise)]
    video.write(folder / f"{number}.mp4", frames, FPS)


def fedreel(*words: str) -> float:
    """Seconds that a command takes, from its start to its end."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "fedreel", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"fedreel {' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return time.perf_counter() - began


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3, help="2 or more; the baseline has 20")
    parser.add_argument("--clips", type=int, default=CLIPS, help="of each client")
    parser.add_argument("--distinct", type=int, default=200, help="clips that differ")
    parser.add_argument("--seconds", type=float, default=7.0, help="of a clip")
    parser.add_argument("--stored", type=int, default=128, help="shorter side of the pictures")
    parser.add_argument("--memory", type=float, default=0.001, help="GB of clips held decoded; by default all are read")
    parser.add_argument("--precision", default="fp32,bf16")
    parser.add_argument("--set", action="append", default=[], help="another setting of the recipe, as of `fedreel run`")
    parser.add_argument("--place", help="folder for files and pictures, about 15 GB [the system's for temporary files]")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more: the first is not counted")
    return options


if __name__ == "__main__":
    main()
