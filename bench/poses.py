"""How fast people are followed, and how far the networks' answers can be trusted, on any videos.

    python bench/poses.py VIDEOS [--people 1] [--details lite full heavy] [--frames 120]

VIDEOS is a file or a folder. For each network: frames a second as they came, and as two cores to themselves would give
them (two divided by the seconds of processor time a frame); in how many frames somebody is found; how much the lengths
of thighs, shins, upper arms and forearms vary in time (standard deviation by mean); and how far its landmarks
are from the heaviest network's, in centimetres with the hips at 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np

from fedreel.media.video import SUFFIXES
from fedreel.tasks.skeleton.poses import estimate as estimating
from fedreel.tasks.skeleton.poses.estimate import Poses, estimate
from fedreel.tasks.skeleton.poses.networks import BlazePose
from fedreel.tasks.skeleton.poses.weights import find_weights

LIMBS = ((23, 25), (25, 27), (24, 26), (26, 28), (11, 13), (13, 15), (12, 14), (14, 16))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("videos", type=Path)
    parser.add_argument("--people", type=int, default=1)
    parser.add_argument("--details", nargs="+", default=["lite", "full", "heavy"])
    parser.add_argument("--frames", type=int, default=120, help="of each video, from its beginning")
    args = parser.parse_args()
    files = [args.videos] if args.videos.is_file() else sorted(args.videos.iterdir())
    files = [path for path in files if path.suffix.lower() in SUFFIXES]
    film = estimating.Film
    estimating.Film = lambda *given: Beginning(film(*given), args.frames)  # type: ignore[assignment,misc]
    found: dict[str, list[Poses]] = {}
    report = {}
    print(f"{'network':<8} {'frames/s':>9} {'on two cores':>13} {'found':>7} {'limbs vary':>11} {'off heaviest':>13}")
    for detail in reversed(args.details):
        network = BlazePose(find_weights(detail))
        wall, cpu = time.perf_counter(), time.process_time()
        found[detail] = [estimate(path, network, args.people) for path in files]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        frames = sum(len(poses.scores) for poses in found[detail])
        report[detail] = told = {
            "frames_a_second": round(frames / wall, 1),
            "on_two_cores": round(2 * frames / cpu, 1),
            "found": round(float(np.mean(np.concatenate([p.there[:, 0] for p in found[detail]]))), 3),
            "limbs_vary": round(float(np.median([varied(p) for p in found[detail]])), 3),
            "centimetres_off": round(float(np.median(apart(found[detail], found[args.details[-1]]))), 1),
        }
        rate, cores, share, vary, off = told.values()
        print(f"{detail:<8} {rate:9.1f} {cores:13.1f} {share:7.1%} {vary:11.1%} {off:10.1f} cm")
    print(json.dumps({"bench": "poses", "videos": len(files), "people": args.people, "networks": report}))


class Beginning:
    """The first frames of a film."""

    def __init__(self, film: estimating.Film, count: int) -> None:
        self.film, self.count = film, count

    def __iter__(self) -> itertools.islice:
        return itertools.islice(iter(self.film), self.count)

    def __getattr__(self, name: str) -> object:
        return getattr(self.film, name)


def varied(poses: Poses) -> float:
    body = poses.metres[poses.there[:, 0], 0]
    lengths = np.stack([np.linalg.norm(body[:, a] - body[:, b], axis=1) for a, b in LIMBS])
    return float(np.mean(lengths.std(axis=1) / lengths.mean(axis=1)))


def apart(ones: list[Poses], others: list[Poses]) -> np.ndarray:
    """Of the visible landmarks of frames in which both find somebody."""
    distances = []
    for one, other in zip(ones, others):
        both = one.there[:, 0] & other.there[:, 0]
        clear = other.visible[both, 0] > 0.5
        distances.append(100 * np.linalg.norm(one.metres[both, 0] - other.metres[both, 0], axis=2)[clear])
    return np.concatenate(distances)


if __name__ == "__main__":
    main()
