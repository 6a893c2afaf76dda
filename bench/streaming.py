"""Pretraining whose clips are read when their turn comes, against the same clips held in the device's memory.

    python bench/streaming.py --device cuda
    python bench/streaming.py --device cuda --clips 11425 --ways streaming   # a round of the paper: too much to hold

Clips of ten seconds at 25 frames a second, 128 x 171 pixels, are made here and stored as JPEG pictures; R3D-18 and
Catch-the-Patch as in the recipe fedvssl-paper. fedreel runs its whole product path. Every way of running is a process
of its own. Kinetics' figures follow by arithmetic from bytes and rates measured. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fedreel.config import TrainConfig
from fedreel.core.task import ClientData, Population
from fedreel.data.shards import INDEX, VERSION, Shards
from fedreel.machine.words import size
from fedreel.media.pictures import encode_jpeg
from fedreel.methods.fedvssl import FedVSSL
from fedreel.models.r3d import R3DConfig
from fedreel.tasks.pretrain.task import Pretrain
from fedreel.tasks.vision.footage import Stored
from loops import federated, now

FRAMES, HEIGHT, WIDTH, QUALITY = 250, 128, 171, 90
BATCH = 4
WAYS = ("resident", "streaming", "by threads")  # the last as clips are read for a CPU
PATTERNS = 8  # clips that differ; the others are copies under other names, so that every read is of other bytes on disk
KINETICS, CLIENTS, ROUND = 219_000, 5, 2_285  # its clips; clients in a round of the paper, and clips of one of them


class Owners(Population):
    def __init__(self, source: Shards, task: Pretrain) -> None:
        self.source, self.task = source, task
        self.clients = tuple(map(str, range(CLIENTS)))

    def data(self, client: str) -> ClientData:
        rows = range(int(client), len(self.source), CLIENTS)
        clips = self.task.windows(stored(self.source, rows, "cpu"))
        nothing = self.task.windows(stored(self.source, (), "cpu"))
        return ClientData(clips, nothing, {"frames": float(FRAMES * len(rows))})


def stored(source: Shards, rows: Sequence[int], device: str) -> Stored:
    return Stored(source, tuple(rows), torch.device(device))


@dataclass(frozen=True)
class Made(Pretrain):
    """The task on clips made for it."""

    folder: str = ""

    def population(self, data: Any, seed: int) -> Population:
        return Owners(Shards.open(Path(self.folder)), self)


def main() -> None:
    options = _options()
    if options.way is not None:
        return measure(options)
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        folder = Path(place) / "shards"
        began = time.perf_counter()
        clip_bytes = make_shards(folder, options.clips)
        print(f"{options.clips} clips of {FRAMES} frames made in {time.perf_counter() - began:.0f} s", flush=True)
        print(f"{'':12}{'clips/s':>10}{'GPU peak':>12}{'host peak':>12}", flush=True)
        found = {}
        for name in options.ways:
            found[name] = one = _run(options, folder, name)
            host = one["host_bytes"] + one.get("readers_bytes", 0)
            print(f"{name:12}{one['rate']:10.0f}{size(one['device_bytes']):>12}{size(host):>12}", flush=True)
    raw = FRAMES * HEIGHT * WIDTH * 3
    result: dict[str, Any] = {"bench": "streaming", "clips": options.clips, **found}
    result |= {"bytes_per_clip": {"raw": raw, "jpeg": clip_bytes}, "kinetics_bytes": KINETICS * clip_bytes}
    for name in (way for way in found if way != "resident"):
        print(f"reading alone, nothing trained, {name}: {found[name]['reading']:.0f} clips/s")
        if "resident" in found:
            ratio = found[name]["rate"] / found["resident"]["rate"]
            result[f"{name.replace(' ', '_')}_to_resident"] = ratio
            print(f"{name} against resident: {ratio:.2f}")
    print(f"a clip on disk: raw {size(raw)}, JPEG {size(clip_bytes)}")
    print(f"Kinetics' {KINETICS:,} clips: raw {size(KINETICS * raw)}, JPEG {size(KINETICS * clip_bytes)}")
    if "streaming" in found:
        result["round_seconds"] = CLIENTS * ROUND / found["streaming"]["rate"]
        print(f"a round of {CLIENTS} clients of {ROUND:,} clips: {result['round_seconds']:.0f} s streaming; held, they")
        print(f"would take {size(CLIENTS * ROUND * raw)} of memory")
    print(json.dumps(result))


def make_shards(folder: Path, clips: int) -> float:
    """Shards as `fedreel data shard` writes them, of moving waves with noise; returns the bytes of a clip."""
    folder.mkdir()
    with ThreadPoolExecutor() as pool:
        patterns = [*pool.map(pattern, range(min(PATTERNS, clips)))]
    entries = []
    for number in range(clips):
        content = patterns[number % len(patterns)]
        (folder / f"part-{number:05d}.jpegs").write_bytes(content)
        entry = {"path": f"{number}.mp4", "label": "", "owner": "", "split": "", "fps": 25.0, "part": number}
        entry |= {"offset": 0, "size": len(content), "frames": FRAMES, "height": HEIGHT, "width": WIDTH}
        entries.append(entry)
    index = {"version": VERSION, "side": HEIGHT, "quality": QUALITY, "clips": entries, "broken": [], "cut": []}
    (folder / INDEX).write_text(json.dumps(index))
    return sum(map(len, patterns)) / len(patterns)


def pattern(number: int) -> bytes:
    """A clip as shards store it: pictures, then where each begins."""
    random = np.random.default_rng(number)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pictures = []
    for t in range(FRAMES):
        waves = [np.sin((x + 2 * t) / (6 + number) + y / 9 + c) + np.cos(x * y / 700 - t / 9) for c in range(3)]
        picture = 128 + 50 * np.stack(waves, axis=2) + random.normal(0, 4, (HEIGHT, WIDTH, 1))
        pictures.append(encode_jpeg(picture.clip(0, 255).astype(np.uint8), QUALITY))
    starts = np.cumsum([0, *map(len, pictures)]).astype("<u4")
    whole = b"".join(pictures)
    return whole + bytes(-len(whole) % 4) + starts.tobytes()


def _run(options: argparse.Namespace, folder: Path, way: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--device", options.device, "--rounds", str(options.rounds)]
    command += ["--width", str(options.width), "--place", str(folder), "--way", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(options: argparse.Namespace) -> None:
    """One way of running: rounds of all clients, the first not timed."""
    backbone = R3DConfig(bn_eps=1e-3, width=options.width)
    paper: dict[str, Any] = {"frames": 16, "size": 112, "stored": 128, "jitter": 0.5, "norm": "imagenet"}
    task = Made(pretext="ctp", backbone=backbone, folder=str(options.place), **paper)
    config = TrainConfig(batch_size=BATCH, lr=0.01, weight_decay=1e-4, clip_norm=40.0, precision="bf16")
    clips = len(Shards.open(Path(options.place)))
    memory = 1e6 if options.way == "resident" else 1e-6
    threads = patch("fedreel.tasks.vision.footage.by_processes", lambda stored: False)
    with threads if options.way == "by threads" else nullcontext():
        seconds = federated(task, FedVSSL(), config, options.rounds, options.device, memory=memory)
        read = reading(task, options) if options.way != "resident" else {}
    device = torch.cuda.max_memory_reserved() if options.device == "cuda" else 0
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rate": clips / seconds, "device_bytes": device, "host_bytes": host} | read))


def reading(task: Made, options: argparse.Namespace) -> dict[str, float]:
    """Clips a second that are read and brought to the device, by one pass over all of them after a short one; and the
    memory of the processes that read them."""
    source = Shards.open(Path(options.place))
    for rows in (range(min(len(source), 64 * BATCH)), range(len(source))):
        clips = task.windows(stored(source, rows, options.device))
        began = now(options.device)
        for _ in clips.batches(BATCH, torch.Generator().manual_seed(0)):
            pass
        seconds = now(options.device) - began
    readers = sum(_peak(process.pid) for process in multiprocessing.active_children() if process.pid)
    return {"reading": len(source) / seconds, "readers_bytes": readers}


def _peak(process: int) -> int:
    """The most memory that it ever had, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clips", type=int, default=2000, help="of all five clients: held, 16.4 MB each")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--width", type=int, default=64, help="of the network; the paper's is 64")
    parser.add_argument("--place", help="folder for the clips, 64 GB at most [the system's for temporary files]")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
