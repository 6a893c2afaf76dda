"""Shot boundaries by cuts between frames, by TransNetV2 and by change points of features (KTS), on videos with known
cuts.

    python bench/shots.py CLIPS [--videos 4] [--each 1.5 4] [--features plain]

CLIPS is a folder of clips, such as those of a data set, each one shot. Parts of them are joined at frames that are
known (hard cuts, H.264), and so are parts of the playground's. A boundary counts as found within 2 frames of a cut. KTS
works on steps of features (2 a second), so `kts, step` also counts what it finds within one step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from fedreel import playground
from fedreel.data.features import make_features
from fedreel.data.steps import look
from fedreel.media.video import SUFFIXES, read_lenient, write
from fedreel.models.transnet import ShotFinder, published_transnet
from fedreel.tasks.summary.cuts import NetworkCuts, PictureCuts
from fedreel.tasks.summary.summarize import segments_by_kts

NEAR, STEPS, FPS, SIZE = 2, 2.0, 25, (128, 192)  # frames; steps a second; of the joined videos


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("clips", type=Path, nargs="?")
    parser.add_argument("--videos", type=int, default=4)
    parser.add_argument("--each", type=float, nargs=2, default=(1.5, 4.0), help="seconds of a shot, from and to")
    parser.add_argument("--features", default="plain")
    args = parser.parse_args()
    sources = {"playground": playground.cached(size="tiny", parts=["actions"])}
    sources |= {"clips": args.clips} if args.clips else {}
    network, features = published_transnet(), make_features(args.features)
    rows = []
    for name, folder in sources.items():
        rng = np.random.default_rng(0)
        clips = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        for _ in range(args.videos):
            rows.append({"source": name, **compared(joined(clips, rng, args.each), network, features)})
    totals = {}
    print(f"{'videos of':<12} {'way':<10} {'precision':>9} {'recall':>7} {'F1':>6}   cuts")
    for name in sources:
        own = [row for row in rows if row["source"] == name]
        for way in ("cuts", "transnet", "kts", "kts, step"):
            right, given, cuts = (sum(row[way][k] for row in own) for k in range(3))
            found = {"precision": right / max(given, 1), "recall": right / max(cuts, 1)}
            found["f1"] = 2 * right / max(given + cuts, 1)
            totals[f"{name}: {way}"] = {key: round(value, 3) for key, value in found.items()}
            print(f"{name:<12} {way:<10} {found['precision']:9.3f} {found['recall']:7.3f} {found['f1']:6.3f}   {cuts}")
    frames, seconds = sum(row["frames"] for row in rows), sum(row["seconds"] for row in rows)
    print(json.dumps({"bench": "shots", "found": totals, "frames_a_second": round(frames / seconds, 1)}))


def joined(clips: list[Path], rng: np.random.Generator, each: tuple[float, float]) -> tuple[np.ndarray, list[int]]:
    """Parts of clips one after another, no clip twice in a row, and the frames at which the second and later begin."""
    parts: list[np.ndarray] = []
    for index in rng.permutation(len(clips))[:8]:
        frames = read_lenient(clips[index], SIZE).frames
        length = min(len(frames), round(FPS * rng.uniform(*each)))
        first = int(rng.integers(len(frames) - length + 1))
        parts.append(frames[first : first + length])
    return np.concatenate(parts), np.cumsum([len(part) for part in parts])[:-1].tolist()


def compared(video: tuple[np.ndarray, list[int]], network: object, features: object) -> dict[str, object]:
    frames, cuts = video
    finder, pictures = NetworkCuts(ShotFinder(network)), PictureCuts()  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "joined.mp4"
        write(path, frames, FPS)
        begun = time.perf_counter()
        steps = look(path, features, STEPS, None, finder)  # type: ignore[arg-type]
        found = finder.segments()[1:, 0]
        seconds = time.perf_counter() - begun
        look(path, features, STEPS, None, pictures)  # type: ignore[arg-type]
    by_cuts = pictures.segments()[1:, 0]
    by_kts = segments_by_kts(steps)[1:, 0]
    step = round(FPS / STEPS)
    return {
        "cuts": (matched(by_cuts, cuts, NEAR), len(by_cuts), len(cuts)),
        "transnet": (matched(found, cuts, NEAR), len(found), len(cuts)),
        "kts": (matched(by_kts, cuts, NEAR), len(by_kts), len(cuts)),
        "kts, step": (matched(by_kts, cuts, step), len(by_kts), len(cuts)),
        "frames": len(frames),
        "seconds": seconds,
    }


def matched(found: np.ndarray, cuts: list[int], near: int) -> int:
    """How many cuts are found, each by a boundary of its own."""
    free, right = sorted(int(frame) for frame in found), 0
    for cut in cuts:
        hit = next((frame for frame in free if abs(frame - cut) <= near), None)
        if hit is not None:
            free.remove(hit)
            right += 1
    return right


if __name__ == "__main__":
    main()
